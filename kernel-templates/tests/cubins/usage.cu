// Source of the cubins beside it, usage.sm_*.cubin: one kernel that uses every resource that a cubin states, and one that
// uses next to none. Compiled by NVRTC 13.0.88 with
//     --gpu-architecture=sm_80 (sm_89, sm_90a, sm_100a) --ptxas-options=-v --std=c++17

// Static shared memory, launch bounds, an array indexed at run time (local memory) and more live values than the registers
// that the launch bounds leave (spills). sm_89 has no room for two such CTAs: there the compiler drops the second bound.
extern "C" __global__ void __launch_bounds__(1024, 2) heavy(const float* __restrict__ in, float* out, int steps) {
    __shared__ float tile[1024];
    float live[48];
    float kept[16];
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 48; ++i) live[i] = in[i * 1024 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 16; ++i) kept[i] = live[i];
    for (int step = 0; step < steps; ++step) {
        float x = tile[(threadIdx.x + step) & 1023];
        kept[step & 15] += x;
#pragma unroll
        for (int i = 0; i < 48; ++i) live[i] = live[i] * x + live[(i + 7) % 48];
    }
    float sum = kept[steps & 15];
#pragma unroll
    for (int i = 0; i < 48; ++i) sum += live[i] * (i + 1);
    out[threadIdx.x] = sum;
}

// Nothing but parameters.
extern "C" __global__ void light(float* out, float x) { out[threadIdx.x] = x; }
