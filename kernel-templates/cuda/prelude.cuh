// What the kernels need of a machine: a GPU's instructions, or their emulation on a host.
#pragma once
#include "types.cuh"

#ifdef __CUDACC__
#include "device.cuh"
#include "tensor.cuh"
#include "warpgroup.cuh"
#else
#include "emulation.hpp"
#include "emulation_tensor.hpp"
#include "emulation_warpgroup.hpp"
#endif
