// What the kernels need of a GPU: a GPU's instructions, or their emulation on a host.
#pragma once
#include "types.cuh"

#ifdef __CUDACC__
#include "ptx.cuh"
#include "tma.cuh"
#include "wgmma.cuh"
#else
#include "emulation.hpp"
#include "emulation_tma.hpp"
#include "emulation_wgmma.hpp"
#endif
