//! How a user names a device of this machine.

/// A device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The host's processor.
    Cpu,
    /// The GPU with this number.
    Cuda(usize),
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl std::str::FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || format!("`{text}` is not a device; use cpu, cuda or cuda:N");
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) => number.parse().map(Self::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_parse_back_from_their_names() {
        for device in [DeviceName::Cpu, DeviceName::Cuda(0), DeviceName::Cuda(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        assert!("cuda:x".parse::<DeviceName>().is_err() && "gpu".parse::<DeviceName>().is_err());
    }
}
