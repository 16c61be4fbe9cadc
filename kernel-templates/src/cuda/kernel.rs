//! A kernel: the few lines that instantiate a template, and what a launch of it takes.

use tilewright_heuristics::{Dtype, Fp8};

/// A kernel that can be compiled and launched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The name of its entry point.
    pub name: String,
    /// What instantiates it.
    pub text: String,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory of a CTA in bytes.
    pub shared_bytes: u32,
    /// The C++ type whose `run` it calls, for other instantiations of the same template.
    pub template: String,
}

impl Kernel {
    /// Instantiates a template that takes a plan's [`super::Arguments`]. The rest of the kernel is known.
    pub(super) fn of_plan(self, header: &str, launch_bounds: &str) -> Self {
        let Self { name, shared_bytes, template, .. } = &self;
        let text = format!(
            "#include \"{header}\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::SHARED_BYTES == {shared_bytes}, \"the host reserves this much\");\n\
             extern \"C\" __global__ void {launch_bounds}\n\
             {name}(const __grid_constant__ tilewright::Arguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { text, ..self }
    }
}

/// The C++ name of the element type of Q and the output.
pub(super) fn element(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => "F16",
        Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => "Bf16",
        // No tile of the space is feasible for it: tensor cores have no full-precision product.
        Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => "F32",
    }
}

/// The C++ name of the element type of K and V.
pub(super) fn kv_element(dtype: Dtype) -> &'static str {
    match dtype.fp8() {
        None => element(dtype),
        Some(Fp8::E4m3) => "E4m3",
        Some(Fp8::E5m2) => "E5m2",
    }
}

/// The name of element types as a part of other names.
pub(super) fn identifier(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Fp8F16 => "fp8_f16",
        Dtype::Fp8Bf16 => "fp8_bf16",
        Dtype::Fp8F32 => "fp8_f32",
        Dtype::E5m2F16 => "e5m2_f16",
        Dtype::E5m2Bf16 => "e5m2_bf16",
        Dtype::E5m2F32 => "e5m2_f32",
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => dtype.name(),
    }
}
