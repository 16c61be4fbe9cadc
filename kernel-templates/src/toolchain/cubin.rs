//! What every kernel of a cubin takes of a device, read from the file: no GPU, driver or toolkit is asked.
//!
//! A cubin is an ELF64 file of machine 190. A kernel `K` is a section `.text.K`; its figures are attributes in `.nv.info`
//! (of all kernels, each names its symbol) and `.nv.info.K`, and the size of `.nv.shared.K`. NVIDIA documents none of this:
//! the fixtures of the tests hold it against what `cuobjdump --dump-resource-usage` prints.

use object::elf::{EM_CUDA, FileHeader64, SHT_SYMTAB};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, SymbolIndex};
use std::collections::BTreeMap;

/// Attributes of `.nv.info` sections that state a limit or a use. The names are those of `cuobjdump --dump-elf`.
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const MIN_STACK_SIZE: u8 = 0x12;
    pub(super) const CBANK_PARAM_SIZE: u8 = 0x19;
    pub(super) const REGCOUNT: u8 = 0x2f;
}

/// The format of an attribute whose payload follows it; all others hold their value in place.
const SIZED: u8 = 4;

/// The section that only cubins have whose `.nv.shared.K` begin with the system's share (compute capability 9.0 and later).
const RESERVED_SECTION: &[u8] = b".nv.shared.reserved.0";

/// The system's share of each CTA's shared memory. Devices of compute capability 8.x set it aside as well, but their cubins
/// leave it out.
const RESERVED_BYTES: u32 = 1024;

/// What one kernel takes of a device, whatever the launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelUsage {
    /// Registers a thread.
    pub registers: u32,
    /// Shared memory that the code declares with a size, a CTA, less what the system reserves.
    pub static_shared_bytes: u32,
    /// Local memory a thread: arrays indexed at run time and spilled registers, of called functions too.
    pub local_bytes: u32,
    /// Bytes of parameters.
    pub parameter_bytes: u32,
    /// The most threads a CTA may have by the kernel's launch bounds; 0 if it states none.
    pub max_threads: u32,
    /// Bytes of machine code, padding included.
    pub code_bytes: u64,
}

/// Why a file's usage could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CubinError {
    /// Not even the header of a little-endian ELF64 file.
    #[error("not a cubin: {reason}; compile to a cubin (--gpu-architecture=sm_…), not to PTX (compute_…)")]
    NotElf {
        /// What is wrong with the header.
        reason: String,
    },
    /// An ELF file of another machine.
    #[error(
        "an ELF file of machine {machine}, not a cubin (machine 190); pass what NVRTC or nvcc -cubin wrote"
    )]
    NotCubin {
        /// The machine that it is for.
        machine: u16,
    },
    /// A part is missing or contradicts the rest.
    #[error(
        "a damaged cubin: {place}: {reason}; compile it again, and drop it from the cache if it came from there"
    )]
    Damaged {
        /// The section or table.
        place: String,
        /// What is wrong there.
        reason: String,
    },
    /// The two places that state a kernel's registers differ, so neither can be relied on.
    #[error(
        "kernel {kernel}: .nv.info states {info} registers, the header of its code {header}; \
         this toolkit's cubins have a layout not known here: use another toolkit, or report its version"
    )]
    RegistersDisagree {
        /// The kernel's name.
        kernel: String,
        /// Registers by `.nv.info`.
        info: u32,
        /// Registers by the header of `.text.K`.
        header: u32,
    },
    /// A kernel whose registers are stated nowhere.
    #[error(
        "kernel {kernel}: no register count in .nv.info; \
         this toolkit's cubins have a layout not known here: use another toolkit, or report its version"
    )]
    NoRegisters {
        /// The kernel's name.
        kernel: String,
    },
}

/// The usage of every kernel of a cubin by its name in the file (mangled unless the source says `extern "C"`).
///
/// # Errors
/// If it is not a cubin, or is damaged.
pub fn kernel_usage(cubin: &[u8]) -> Result<BTreeMap<String, KernelUsage>, CubinError> {
    let not_elf = |e: object::read::Error| CubinError::NotElf { reason: e.to_string() };
    let header = FileHeader64::<LittleEndian>::parse(cubin).map_err(not_elf)?;
    let endian = header.endian().map_err(not_elf)?;
    let machine = header.e_machine(endian);
    if machine != EM_CUDA {
        return Err(CubinError::NotCubin { machine });
    }
    let sections = header.sections(endian, cubin).map_err(|e| damaged("section table", e))?;
    let symbols = sections.symbols(endian, cubin, SHT_SYMTAB).map_err(|e| damaged("symbol table", e))?;

    let mut named = Vec::with_capacity(sections.len());
    for (index, section) in sections.enumerate() {
        let name = sections
            .section_name(endian, section)
            .map_err(|e| damaged(format_args!("name of section {}", index.0), e))?;
        named.push((name, section));
    }
    let data = |name: &[u8], section: &object::elf::SectionHeader64<LittleEndian>| {
        section.data(endian, cubin).map_err(|e| damaged(String::from_utf8_lossy(name), e))
    };

    let mut kernels: BTreeMap<String, Draft> = BTreeMap::new();
    for &(name, section) in &named {
        if let Some(kernel) = name.strip_prefix(b".text.") {
            let draft = kernels.entry(text(name, kernel)?).or_default();
            draft.usage.code_bytes = data(name, section)?.len() as u64;
            // Zero in cubins for 9.0 and later, which state the registers in .nv.info only.
            draft.header_registers = section.sh_info(endian) >> 24;
        }
    }

    let system_share =
        if named.iter().any(|&(name, _)| name == RESERVED_SECTION) { RESERVED_BYTES } else { 0 };
    for &(name, section) in &named {
        if name == b".nv.info" {
            for entry in attributes(name, data(name, section)?) {
                let entry = entry?;
                if !matches!(
                    entry.code,
                    attribute::REGCOUNT | attribute::FRAME_SIZE | attribute::MIN_STACK_SIZE
                ) {
                    continue;
                }
                let symbol = symbols
                    .symbol(SymbolIndex(entry.u32(0)? as usize))
                    .and_then(|symbol| symbol.name(endian, symbols.strings()))
                    .map_err(|e| damaged(".nv.info", e))?;
                // Called functions have entries of their own; a kernel's cumulative stack counts them.
                let Some(draft) = std::str::from_utf8(symbol).ok().and_then(|name| kernels.get_mut(name))
                else {
                    continue;
                };
                let value = entry.u32(1)?;
                match entry.code {
                    attribute::REGCOUNT => draft.info_registers = Some(value),
                    _ => draft.usage.local_bytes = draft.usage.local_bytes.max(value),
                }
            }
        } else if let Some(draft) = owner(&mut kernels, name, b".nv.info.") {
            for entry in attributes(name, data(name, section)?) {
                let entry = entry?;
                match entry.code {
                    attribute::MAX_THREADS => {
                        draft.usage.max_threads =
                            entry.u32(0)?.saturating_mul(entry.u32(1)?).saturating_mul(entry.u32(2)?);
                    }
                    attribute::CBANK_PARAM_SIZE => draft.usage.parameter_bytes = entry.u16()?.into(),
                    _ => {}
                }
            }
        } else if let Some(draft) = owner(&mut kernels, name, b".nv.shared.") {
            let bytes = u32::try_from(section.sh_size(endian)).map_err(|_| {
                damaged(String::from_utf8_lossy(name), "more shared memory than any device has")
            })?;
            draft.usage.static_shared_bytes = bytes.saturating_sub(system_share);
        }
    }
    kernels.into_iter().map(|(kernel, draft)| Ok((kernel.clone(), draft.finish(kernel)?))).collect()
}

/// A kernel's figures before the two statements of its registers are compared.
#[derive(Default)]
struct Draft {
    usage: KernelUsage,
    info_registers: Option<u32>,
    header_registers: u32,
}

impl Draft {
    fn finish(self, kernel: String) -> Result<KernelUsage, CubinError> {
        match (self.info_registers, self.header_registers) {
            (None, _) => Err(CubinError::NoRegisters { kernel }),
            (Some(info), header) if header != 0 && header != info => {
                Err(CubinError::RegistersDisagree { kernel, info, header })
            }
            (Some(registers), _) => Ok(KernelUsage { registers, ..self.usage }),
        }
    }
}

fn damaged(place: impl ToString, reason: impl ToString) -> CubinError {
    CubinError::Damaged { place: place.to_string(), reason: reason.to_string() }
}

fn text(section: &[u8], name: &[u8]) -> Result<String, CubinError> {
    String::from_utf8(name.to_vec()).map_err(|e| damaged(String::from_utf8_lossy(section), e))
}

/// The kernel that a section called `prefix` and a kernel's name belongs to.
fn owner<'a>(
    kernels: &'a mut BTreeMap<String, Draft>,
    section: &[u8],
    prefix: &[u8],
) -> Option<&'a mut Draft> {
    kernels.get_mut(std::str::from_utf8(section.strip_prefix(prefix)?).ok()?)
}

/// One entry of a `.nv.info` section.
struct Attribute<'a> {
    section: &'a [u8],
    code: u8,
    payload: &'a [u8],
}

impl Attribute<'_> {
    /// The payload's 32-bit word at `index`.
    fn u32(&self, index: usize) -> Result<u32, CubinError> {
        let word = self.payload.get(4 * index..).and_then(|rest| rest.first_chunk());
        word.map(|&word| u32::from_le_bytes(word)).ok_or_else(|| self.short())
    }

    /// The payload's first 16 bits.
    fn u16(&self) -> Result<u16, CubinError> {
        self.payload.first_chunk().map(|&half| u16::from_le_bytes(half)).ok_or_else(|| self.short())
    }

    fn short(&self) -> CubinError {
        damaged(
            String::from_utf8_lossy(self.section),
            format_args!("attribute {:#04x} holds only {} bytes", self.code, self.payload.len()),
        )
    }
}

/// The entries of a `.nv.info` section; the last one is an error if the section ends within it.
fn attributes<'a>(
    section: &'a [u8],
    mut data: &'a [u8],
) -> impl Iterator<Item = Result<Attribute<'a>, CubinError>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let entry = data.split_at_checked(4).and_then(|(head, rest)| {
            let (format, code, value) = (head[0], head[1], &head[2..]);
            if format != SIZED {
                return Some((Attribute { section, code, payload: value }, rest));
            }
            let size = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let (payload, rest) = rest.split_at_checked(size)?;
            Some((Attribute { section, code, payload }, rest))
        });
        match entry {
            Some((entry, rest)) => {
                data = rest;
                Some(Ok(entry))
            }
            None => {
                data = &[];
                Some(Err(damaged(String::from_utf8_lossy(section), "ends within an attribute")))
            }
        }
    })
}
