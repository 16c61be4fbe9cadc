//! Host side of `merge_states.cuh`.

use super::Kernel;
use super::kernel::{element, identifier};
use crate::Class;

impl Kernel {
    /// Merge of states: attention over several parts of the KV into attention over all of it (Hydragen, section 3.1). Takes a
    /// [`super::StatesArguments`]; each CTA serves [`Kernel::rows_of_states`] rows (request, query head).
    pub fn merge_states(class: &Class) -> Self {
        let template = format!("MergeStates<{}, {}>", class.head_dim, element(class.dtype));
        let name = format!("merge_states_d{}_{}", class.head_dim, identifier(class.dtype.query()));
        let rows = Self::rows_of_states(class);
        let text = format!(
            "#include \"merge_states.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::ROWS == {rows}, \"the host launches as many CTAs as that takes\");\n\
             extern \"C\" __global__ void __launch_bounds__(128)\n\
             {name}(const __grid_constant__ tilewright::StatesArguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads: 128, shared_bytes: 0, template }
    }

    /// Rows that a CTA of [`Kernel::merge_states`] serves: 16 bytes of a row are one thread's, or several times 16 where a row has all threads of a
    /// warp, and a row has a power of two of threads.
    pub const fn rows_of_states(class: &Class) -> u32 {
        match class.head_dim.checked_next_power_of_two() {
            Some(elements) if elements <= 32 * 8 => 128 * 8 / elements,
            Some(_) => 128 / 32,
            None => 0,
        }
    }
}
