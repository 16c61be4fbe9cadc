//! Which devices of this machine a run is of.

use crate::device_name::DeviceName;

/// One device, several, or all GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// These, at least one; written `cuda:0,cuda:1`.
    These(Vec<DeviceName>),
    /// `cuda:all`.
    AllGpus,
}

impl std::fmt::Display for DeviceList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AllGpus => f.write_str("cuda:all"),
            Self::These(devices) => {
                let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl std::str::FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "cuda:all" {
            return Ok(Self::AllGpus);
        }
        text.split(',').map(str::parse).collect::<Result<_, String>>().map(Self::These)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_of_devices_or_of_all_gpus() {
        let these = |devices: &[DeviceName]| Ok(DeviceList::These(devices.to_vec()));
        assert_eq!("cuda:all".parse(), Ok(DeviceList::AllGpus));
        assert_eq!("cpu".parse(), these(&[DeviceName::Cpu]));
        assert_eq!("cuda,cuda:3".parse(), these(&[DeviceName::Cuda(0), DeviceName::Cuda(3)]));
        for text in ["cuda:all", "cpu", "cuda:0,cuda:3"] {
            assert_eq!(text.parse::<DeviceList>().unwrap().to_string(), text);
        }
        for text in ["", "cuda:all,cpu", "cpu,", "gpu"] {
            assert!(text.parse::<DeviceList>().is_err(), "{text}");
        }
    }
}
