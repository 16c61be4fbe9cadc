//! Several models of device of one machine, a process each: each has a run of its own. Alike devices share the run of their model
//! ([`Benches`](crate::measure::Benches)). What a process has measured stays where it is, whatever becomes of the others.

mod arguments;
mod process;

pub use arguments::worker_arguments;
pub use process::{Ended, run};

use crate::device_list::DeviceList;
use crate::device_name::DeviceName;
use crate::store::{DeviceRecord, Finished, RunFolder, StoreError};
use std::path::{Path, PathBuf};

/// A process of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it measures: alike devices.
    pub devices: Vec<DeviceName>,
    /// Its folder.
    pub out: PathBuf,
}

impl Worker {
    /// Its devices as a user names them.
    pub fn device_list(&self) -> DeviceList {
        DeviceList::These(self.devices.clone())
    }

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

/// The worker of each model of device, in the order in which models come first. Their folders lie in `out`.
pub fn workers(devices: &[(DeviceName, DeviceRecord)], out: &Path) -> Vec<Worker> {
    let mut models: Vec<(&DeviceRecord, Worker)> = Vec::new();
    for (device, record) in devices {
        match models.iter_mut().find(|(model, _)| *model == record) {
            Some((_, worker)) => worker.devices.push(*device),
            None => {
                let folder = device.to_string().replace(':', "-");
                models
                    .push((record, Worker { devices: vec![*device], out: out.join("workers").join(folder) }));
            }
        }
    }
    models.into_iter().map(|(_, worker)| worker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_devices_share_a_run_and_others_have_their_own() {
        let record = |name: &str| DeviceRecord {
            backend: "cuda".to_owned(),
            name: name.to_owned(),
            capability: "sm_90".to_owned(),
            units: 132,
        };
        let devices = ["H100", "H200", "H100", "H100"].map(record);
        let devices: Vec<_> =
            devices.into_iter().enumerate().map(|(i, record)| (DeviceName::Cuda(i), record)).collect();
        let workers = workers(&devices, Path::new("out"));
        let lists: Vec<String> = workers.iter().map(|worker| worker.device_list().to_string()).collect();
        assert_eq!(lists, ["cuda:0,cuda:2,cuda:3", "cuda:1"]);
        assert_eq!(workers[1].out, Path::new("out/workers/cuda-1"));
        assert!(!workers[0].has_begun().unwrap());
    }
}
