//! GPU architectures, as NVRTC names them.

use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// A real architecture that a cubin is made for: `sm_80`, `sm_90a`.
///
/// The suffix `a` opens an architecture's own instructions, and the cubin then runs on that one only; `f` opens those of its
/// family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    number: u32,
    suffix: Option<Suffix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Suffix {
    A,
    F,
}

/// A text that names no architecture.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is no GPU architecture: write sm_ and its number, with an a or f behind it if it has one, \
     such as sm_80, sm_90a or sm_100a"
)]
pub struct ParseArchError(String);

impl Arch {
    /// The architecture to compile for on a device of this compute capability: with the instructions of its own where the
    /// kernels use them (9.0 and 10.0), else plain.
    pub const fn from_capability(major: u32, minor: u32) -> Arch {
        let suffix = match (major, minor) {
            (9 | 10, 0) => Some(Suffix::A),
            _ => None,
        };
        // Saturating, as a driver's answer must not make this panic.
        Arch { number: major.saturating_mul(10).saturating_add(minor), suffix }
    }

    /// The number without `sm_` and suffix: 80 for `sm_80`, 100 for `sm_100a`.
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Whether four warps can multiply together (`wgmma`): compute capability 9.0 alone has that, and its own instructions have to be open.
    pub const fn has_warpgroups(self) -> bool {
        self.number == 90 && matches!(self.suffix, Some(Suffix::A))
    }

    /// Whether a launch may begin before the one that it depends on has ended (programmatic dependent launch).
    pub const fn has_dependent_launches(self) -> bool {
        self.number >= 90
    }

    /// The option that makes NVRTC compile for it.
    pub fn option(self) -> String {
        format!("--gpu-architecture={self}")
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.suffix {
            None => "",
            Some(Suffix::A) => "a",
            Some(Suffix::F) => "f",
        };
        // `pad` keeps width and alignment, so that tables line up.
        f.pad(&format!("sm_{}{suffix}", self.number))
    }
}

impl FromStr for Arch {
    type Err = ParseArchError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseArchError(text.to_owned());
        let rest = text.strip_prefix("sm_").ok_or_else(error)?;
        let (digits, suffix) = if let Some(digits) = rest.strip_suffix('a') {
            (digits, Some(Suffix::A))
        } else if let Some(digits) = rest.strip_suffix('f') {
            (digits, Some(Suffix::F))
        } else {
            (rest, None)
        };
        // `u32::from_str` takes a sign, and a leading zero would print differently.
        if digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        Ok(Arch { number: digits.parse().map_err(|_| error())?, suffix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parses() {
        for name in ["sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_100f", "sm_120"] {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
        }
        assert_eq!("sm_100a".parse::<Arch>().unwrap().number(), 100);
    }

    #[test]
    fn refuses_other_texts_and_says_what_to_write() {
        for text in [
            "",
            "80",
            "sm80",
            "sm_",
            "sm_a",
            "sm_90b",
            "sm_+90",
            "sm_090",
            "SM_90",
            "sm_90aa",
            "sm_99999999999",
        ] {
            let error = text.parse::<Arch>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("sm_90a"), "{error}");
        }
    }

    #[test]
    fn capability_gives_the_name_with_its_own_instructions() {
        for ((major, minor), name) in [
            ((8, 0), "sm_80"),
            ((8, 9), "sm_89"),
            ((9, 0), "sm_90a"),
            ((10, 0), "sm_100a"),
            ((10, 3), "sm_103"),
            ((12, 0), "sm_120"),
        ] {
            assert_eq!(Arch::from_capability(major, minor).to_string(), name);
        }
        assert_eq!(Arch::from_capability(u32::MAX, u32::MAX).number(), u32::MAX);
    }

    #[test]
    fn option_is_nvrtcs() {
        assert_eq!(Arch::from_capability(9, 0).option(), "--gpu-architecture=sm_90a");
    }
}
