//! Several devices of one machine, a process each. Alike ones share the work by its amount; unlike ones have a run of their own. What a process has
//! measured stays where it is, whatever becomes of the others.

mod arguments;
mod process;

pub use arguments::worker_arguments;
pub use process::{Ended, run};

use crate::device_name::DeviceName;
use crate::shard::Shard;
use crate::store::{DeviceRecord, Finished, RunFolder, StoreError};
use std::path::{Path, PathBuf};

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it measures.
    pub device: DeviceName,
    /// Its part of the work, where others measure the rest.
    pub shard: Option<Shard>,
    /// Its folder.
    pub out: PathBuf,
}

impl Worker {
    /// Whether a run lies in its folder that it can go on with.
    ///
    /// # Errors
    /// The file system's.
    pub fn has_begun(&self) -> Result<bool, StoreError> {
        for entry in std::fs::read_dir(&self.out).into_iter().flatten().flatten() {
            let folder = entry.path();
            if folder.is_dir() && (RunFolder::is_stopped(&folder)? || Finished::in_folder(&folder)?.is_some())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The workers of each model of device, in the order in which models come first. Their folders lie in `out`.
pub fn workers(devices: &[(DeviceName, DeviceRecord)], out: &Path) -> Vec<Vec<Worker>> {
    let mut models: Vec<(&DeviceRecord, Vec<usize>)> = Vec::new();
    for (place, (_, record)) in devices.iter().enumerate() {
        match models.iter_mut().find(|(model, _)| *model == record) {
            Some((_, places)) => places.push(place),
            None => models.push((record, vec![place])),
        }
    }
    let of_model = |(_, places): (&DeviceRecord, Vec<usize>)| {
        let count = places.len();
        let worker = |(index, place): (usize, usize)| {
            let device = devices[place].0;
            // By its place: a processor may be there twice.
            let folder = format!("{place}-{}", device.to_string().replace(':', "-"));
            let shard = (count > 1).then_some(Shard { index, count });
            Worker { device, shard, out: out.join("workers").join(folder) }
        };
        places.into_iter().enumerate().map(worker).collect()
    };
    models.into_iter().map(of_model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_devices_share_and_others_have_a_run_of_their_own() {
        let record = |name: &str| DeviceRecord {
            backend: "cuda".to_owned(),
            name: name.to_owned(),
            capability: "sm_90".to_owned(),
            units: 132,
        };
        let devices = ["H100", "H200", "H100", "H100"].map(record);
        let devices: Vec<_> =
            devices.into_iter().enumerate().map(|(i, record)| (DeviceName::Cuda(i), record)).collect();
        let groups = workers(&devices, Path::new("out"));
        let told: Vec<Vec<(DeviceName, Option<String>)>> = groups
            .iter()
            .map(|group| group.iter().map(|w| (w.device, w.shard.map(|shard| shard.to_string()))).collect())
            .collect();
        let shard = |text: &str| Some(text.to_owned());
        let shared = [(0, "1/3"), (2, "2/3"), (3, "3/3")].map(|(i, text)| (DeviceName::Cuda(i), shard(text)));
        assert_eq!(told, [shared.to_vec(), vec![(DeviceName::Cuda(1), None)]]);
        assert_eq!(groups[0][1].out, Path::new("out/workers/2-cuda-2"));
        assert!(!groups[0][1].has_begun().unwrap());
    }
}
