//! What the assembler has made of a kernel, where its sources cannot say all that matters.

use object::{Object, ObjectSection};
use tilewright_kernel_templates::cuda::Kernel;

/// Fields of an instruction of compute capability 9.0, as `nvdisasm -hex` shows them: 12 bits of operation, and beside its operands which of six
/// scoreboards it sets when its result is there, and which it waits for. NVIDIA documents none of this: a test holds it against a kernel that
/// is wrong.
struct Instruction {
    low: u64,
    high: u64,
}

impl Instruction {
    const LDSM: u64 = 0x83b;
    const LDS: u64 = 0x984;
    const ARRIVE: u64 = 0x9a7;

    fn operation(&self) -> u64 {
        self.low & 0xfff
    }

    /// Whether it reads shared memory: matrices, as all warps read K and V, or more than one word a lane, as some read the query, or four, as some
    /// widen K and V.
    fn reads(&self, what: Reads) -> bool {
        let words = self.high >> 9 & 7; // 4, 5 and 6 are 32, 64 and 128 bits
        match what {
            Reads::Matrices => self.operation() == Self::LDSM,
            Reads::Words => self.operation() == Self::LDS && words > 4,
            Reads::FourWords => self.operation() == Self::LDS && words > 5,
        }
    }

    fn sets(&self) -> Option<usize> {
        Some((self.high >> 46 & 7) as usize).filter(|&scoreboard| scoreboard < 6)
    }

    fn waits_for(&self, scoreboard: usize) -> bool {
        self.high >> (52 + scoreboard) & 1 == 1
    }
}

/// Reads of shared memory.
#[derive(Clone, Copy)]
pub(crate) enum Reads {
    Matrices,
    Words,
    FourWords,
}

/// How many arrivals at barriers of shared memory a cubin's kernel has, and which of them do not wait for every such read before them, in the order of
/// the code: byte offsets into it.
pub(crate) fn arrivals(cubin: &[u8], reads: Reads) -> (usize, Vec<usize>) {
    let file = object::File::parse(cubin).unwrap();
    let code = file.sections().find(|section| section.name().unwrap().starts_with(".text.")).unwrap();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let (mut all, mut early, mut pending) = (0, Vec::new(), [false; 6]);
    for (index, bytes) in code.data().unwrap().chunks_exact(16).enumerate() {
        let instruction = Instruction { low: word(&bytes[..8]), high: word(&bytes[8..]) };
        for (scoreboard, pending) in pending.iter_mut().enumerate() {
            *pending &= !instruction.waits_for(scoreboard);
        }
        if instruction.operation() == Instruction::ARRIVE {
            all += 1;
            early.extend(pending.contains(&true).then_some(index * 16));
        }
        if let Some(scoreboard) = instruction.sets().filter(|_| instruction.reads(reads)) {
            pending[scoreboard] = true;
        }
    }
    (all, early)
}

/// TMA fills a buffer again as soon as all warps have arrived at its barrier: what they read of it has to be in registers by then. `ptxas` makes
/// an arrival wait for no read by itself. The query of heads of more than 128 elements is read by two words, if not by matrices, and TMA never fills its
/// place.
pub(crate) fn assert_arrivals_wait(kernel: &Kernel, head_dim: u32, arch: &str, cubin: &[u8]) {
    // Other architectures have no kernels with TMA, and perhaps other scoreboards.
    if arch == "sm_90a" {
        let of_words = if head_dim > 128 { Reads::FourWords } else { Reads::Words };
        let [matrices, words] = [Reads::Matrices, of_words].map(|reads| arrivals(cubin, reads).1);
        assert!(
            matrices.is_empty() && words.is_empty(),
            "{}: arrivals at {matrices:x?} and {words:x?} do not wait for reads of shared memory",
            kernel.name
        );
    }
}
