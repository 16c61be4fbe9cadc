//! One run a folder: two that write into one would take each other's parts for their own.

use super::StoreError;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

const LOCK: &str = ".lock";

/// Holds a folder until it is dropped, or its process ends in whatever way.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: File,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing it is not enough: a process that is just being started has it open, too, until its program begins.
        let _ = self.file.unlock();
    }
}

impl FolderLock {
    /// Takes the folder, and notes whose it is.
    ///
    /// # Errors
    /// Another process has it, or the file system's.
    pub(super) fn take(folder: &Path) -> Result<Self, StoreError> {
        std::fs::create_dir_all(folder).map_err(StoreError::io("create", folder))?;
        let path = folder.join(LOCK);
        let mut options = File::options();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(StoreError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who it is helps, but is not needed.
                let _ = file.read_to_string(&mut holder);
                return Err(StoreError::Locked { path: folder.to_owned(), holder: holder.trim().to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path)(error)),
        }
        // A full disk must not keep a run from finishing: without a name the lock holds all the same.
        let noted = file.set_len(0).and_then(|()| file.rewind());
        let _ = noted.and_then(|()| writeln!(file, "process {}", std::process::id()));
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_held_by_one_until_it_lets_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let held = FolderLock::take(&path).unwrap();
        let error = FolderLock::take(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())) && error.contains("--out"),
            "{error}"
        );
        // As one that is just being started has it.
        let inherited = held.file.try_clone().unwrap();
        drop(held);
        FolderLock::take(&path).unwrap();
        drop(inherited);
    }
}
