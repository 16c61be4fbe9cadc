// Kernel options: what is compiled in beside a tile and a kernel class. Kernel traits inherit them.
#pragma once

namespace tilewright {

template <bool WINDOW_, bool SOFTCAP_, bool SINKS_, bool TIMELINE_> struct KernelOptions {
  static constexpr bool WINDOW = WINDOW_, SOFTCAP = SOFTCAP_, SINKS = SINKS_, TIMELINE = TIMELINE_;
};

} // namespace tilewright
