//! Many compiled kernels in one file, to ship beside a program: a read-only level of the cache, before NVRTC is looked for.
//!
//! Kernels lie in groups, each compressed as a whole, as kernels of one template are much alike; a group is read when one of its kernels is
//! first asked for. Keys are those of the cache ([`super::CubinCache::key`]): of sources, options, architecture and compiler.

use super::CachedCubin;
use super::compiler::key;
use crate::Arch;
use crate::cuda::{Kernel, sources};
use lzma_rust2::{Lzma2Options, Lzma2Reader, Lzma2Writer};
use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use thiserror::Error;

/// What a file begins with: the name of the format, and its version.
const MAGIC: &[u8; 24] = b"tilewright cubins 1\n\0\0\0\0";

/// Before the index: what the file begins with, the bytes of the index, and its hash.
const HEAD: usize = MAGIC.len() + 8 + blake3::OUT_LEN;

/// Most bytes of an index, and of a group that was unpacked: far above what there is, so that a damaged length takes no memory.
const MOST_BYTES: u64 = 256 << 20;

/// The variable that names the archive of those who name none.
const VARIABLE: &str = "TILEWRIGHT_CUBINS";

/// Why a file is not used.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// The file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It is something else, or of another version of the format.
    #[error(
        "{} is no archive of compiled kernels as this version reads: make one with `cubin_archive`", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Its end is missing, or there is more.
    #[error("{} has {found} bytes where {needed} are expected: it was not written or copied whole", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// What its index says.
        needed: u64,
    },
    /// Its index is not what was written.
    #[error("{} is damaged: {what}; make or install it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// It was made of other sources than this program's.
    #[error(
        "{} was made of the kernel sources {found}, this program has {own}: make it again with this version's `cubin_archive`",
        path.display()
    )]
    Stale {
        /// The file.
        path: PathBuf,
        /// The hash of its sources.
        found: String,
        /// That of this program.
        own: String,
    },
}

/// Kernels of one architecture that are compressed together.
#[derive(Clone, Debug)]
pub struct ArchiveGroup {
    /// What they are compiled for.
    pub arch: Arch,
    /// What was compiled, and what of it was made.
    pub kernels: Vec<(Kernel, CachedCubin)>,
}

/// Where a kernel lies: its group, its first byte there, and the bytes of cubin and log.
#[derive(Clone, Copy, Debug)]
struct Place {
    group: usize,
    at: usize,
    cubin: usize,
    log: usize,
}

#[derive(Debug)]
struct Group {
    arch: Arch,
    at: u64,
    packed: usize,
    unpacked: usize,
    /// Of what is unpacked.
    hash: blake3::Hash,
    /// `None` if it cannot be read.
    bytes: OnceLock<Option<Vec<u8>>>,
}

/// An opened archive.
#[derive(Debug)]
pub struct CubinArchive {
    path: PathBuf,
    file: File,
    nvrtc: (u32, u32),
    groups: Vec<Group>,
    kernels: HashMap<String, Place>,
}

impl CubinArchive {
    /// Opens an archive for as long as the process lives; the second time it is the one that is open.
    ///
    /// # Errors
    /// As [`CubinArchive::open`].
    pub fn load(path: &Path) -> Result<&'static Self, ArchiveError> {
        static LOADED: Mutex<Vec<&'static CubinArchive>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = loaded.iter().find(|known| known.path == path) {
            return Ok(known);
        }
        let archive: &'static Self = Box::leak(Box::new(Self::open(path)?));
        loaded.push(archive);
        Ok(archive)
    }

    /// The archive that `TILEWRIGHT_CUBINS` names; what cannot be used is said once, as a warning, and counts as none.
    pub fn of_environment() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<&'static CubinArchive>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
            let warn = |error: &ArchiveError| tracing::warn!("{VARIABLE}: {error}; kernels are compiled");
            Self::load(Path::new(&path)).inspect_err(warn).ok()
        })
    }

    /// Opens an archive: reads and checks its index.
    ///
    /// # Errors
    /// A file that cannot be read, is something else, is not whole, or was made of other sources than this program's.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let io = |source| ArchiveError::Io { action: "read", path: path.to_owned(), source };
        let damaged = |what: &str| ArchiveError::Damaged { path: path.to_owned(), what: what.to_owned() };
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?.len();
        let length = |needed| ArchiveError::Length { path: path.to_owned(), found, needed };
        let mut head = [0; HEAD];
        let short = usize::try_from(found).unwrap_or(HEAD).min(HEAD);
        file.read_exact_at(&mut head[..short], 0).map_err(io)?;
        let magic = short.min(MAGIC.len());
        if magic == 0 || head[..magic] != MAGIC[..magic] {
            return Err(ArchiveError::Foreign { path: path.to_owned() });
        }
        if short < HEAD {
            return Err(length(HEAD as u64));
        }
        let (bytes, hash) = head[MAGIC.len()..].split_at(8);
        let bytes = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if bytes > MOST_BYTES {
            return Err(damaged("its index would be larger than any"));
        }
        if found < HEAD as u64 + bytes {
            return Err(length(HEAD as u64 + bytes));
        }
        let mut index = vec![0; bytes as usize];
        file.read_exact_at(&mut index, HEAD as u64).map_err(io)?;
        if blake3::hash(&index).as_bytes() != hash {
            return Err(damaged("its index does not have the hash that was written with it"));
        }
        let index = std::str::from_utf8(&index).map_err(|_| damaged("its index is no text"))?;
        let mut archive =
            Self { path: path.to_owned(), file, nvrtc: (0, 0), groups: Vec::new(), kernels: HashMap::new() };
        let (sources, mut needed) = (own_sources(), HEAD as u64 + bytes);
        for line in index.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[..] {
                ["sources", found] if found != sources => {
                    let (found, own) = (found.to_owned(), sources);
                    return Err(ArchiveError::Stale { path: path.to_owned(), found, own });
                }
                ["sources", _] => Some(()),
                _ => archive.take(&fields, &mut needed),
            }
            .ok_or_else(|| damaged(&format!("its index has the line {line:?}")))?;
        }
        if found != needed {
            return Err(length(needed));
        }
        Ok(archive)
    }

    /// Takes a line of the index; `None` if it makes no sense.
    fn take(&mut self, fields: &[&str], end: &mut u64) -> Option<()> {
        match fields {
            ["nvrtc", major, minor] => self.nvrtc = (major.parse().ok()?, minor.parse().ok()?),
            ["group", arch, packed, unpacked, hash] => {
                let (packed, unpacked) = (packed.parse::<u64>().ok()?, unpacked.parse::<u64>().ok()?);
                if packed.max(unpacked) > MOST_BYTES {
                    return None;
                }
                let (arch, hash) = (arch.parse().ok()?, blake3::Hash::from_hex(hash).ok()?);
                let (at, bytes) = (*end, OnceLock::new());
                *end += packed;
                let (packed, unpacked) = (packed as usize, unpacked as usize);
                self.groups.push(Group { arch, at, packed, unpacked, hash, bytes });
            }
            ["kernel", key, at, cubin, log] => {
                let [at, cubin, log] = [at.parse().ok()?, cubin.parse().ok()?, log.parse::<usize>().ok()?];
                let group = self.groups.len().checked_sub(1)?;
                let last = cubin.checked_add(log).and_then(|bytes: usize| bytes.checked_add(at))?;
                if last > self.groups[group].unpacked {
                    return None;
                }
                self.kernels.insert((*key).to_owned(), Place { group, at, cubin, log });
            }
            _ => return None,
        }
        Some(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the compiler that made it: drivers of an older major version cannot load its kernels.
    pub const fn nvrtc(&self) -> (u32, u32) {
        self.nvrtc
    }

    /// Whether it has kernels for an architecture.
    pub fn serves(&self, arch: Arch) -> bool {
        self.groups.iter().any(|group| group.arch == arch)
    }

    /// The architectures that it has kernels for, and how many for each.
    pub fn archs(&self) -> Vec<(Arch, usize)> {
        let mut archs: Vec<(Arch, usize)> = self.groups.iter().map(|group| (group.arch, 0)).collect();
        archs.sort_unstable();
        archs.dedup();
        for (arch, kernels) in &mut archs {
            *kernels = self.kernels.values().filter(|place| self.groups[place.group].arch == *arch).count();
        }
        archs
    }

    /// How many kernels it has.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// A kernel for an architecture; `None` if just this one is not there, or damaged, which is said as a warning.
    pub fn get(&self, kernel: &Kernel, arch: Arch) -> Option<CachedCubin> {
        let place = self.kernels.get(&key(self.nvrtc, kernel, arch))?;
        let group = &self.groups[place.group];
        let bytes = group.bytes.get_or_init(|| self.unpacked(group)).as_ref()?;
        let (cubin, rest) = bytes.get(place.at..)?.split_at_checked(place.cubin)?;
        let log = String::from_utf8(rest.get(..place.log)?.to_vec()).ok()?;
        Some(CachedCubin { cubin: cubin.to_vec(), log })
    }

    fn unpacked(&self, group: &Group) -> Option<Vec<u8>> {
        let read = || -> io::Result<Vec<u8>> {
            let mut packed = vec![0; group.packed];
            self.file.read_exact_at(&mut packed, group.at)?;
            let mut bytes = Vec::with_capacity(group.unpacked);
            let reader = Lzma2Reader::new(&packed[..], window(group.unpacked), None);
            // One more would be one too many.
            reader.take(group.unpacked as u64 + 1).read_to_end(&mut bytes)?;
            if blake3::hash(&bytes) != group.hash {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its hash is another"));
            }
            Ok(bytes)
        };
        let (path, arch) = (self.path.display(), group.arch);
        let warn = |error: &io::Error| {
            tracing::warn!("{path}: kernels for {arch} cannot be read ({error}): they are compiled instead");
        };
        read().inspect_err(warn).ok()
    }

    /// Writes an archive of what this version of NVRTC made. The file is written aside and renamed into place.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path, nvrtc: (u32, u32), groups: &[ArchiveGroup]) -> Result<(), ArchiveError> {
        let io = |source| ArchiveError::Io { action: "write", path: path.to_owned(), source };
        let mut index = format!("sources {}\nnvrtc {} {}\n", own_sources(), nvrtc.0, nvrtc.1);
        let mut all = Vec::new();
        for ArchiveGroup { arch, kernels } in groups.iter().filter(|group| !group.kernels.is_empty()) {
            let (mut bytes, mut lines) = (Vec::new(), String::new());
            for (kernel, CachedCubin { cubin, log }) in kernels {
                let key = key(nvrtc, kernel, *arch);
                lines += &format!("kernel {key} {} {} {}\n", bytes.len(), cubin.len(), log.len());
                bytes.extend_from_slice(cubin);
                bytes.extend_from_slice(log.as_bytes());
            }
            let packed = packed(&bytes).map_err(io)?;
            let hash = blake3::hash(&bytes).to_hex();
            index += &format!("group {arch} {} {} {hash}\n{lines}", packed.len(), bytes.len());
            all.extend(packed);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Temporary files are their owner's alone by default; this one is for all whom the user's mask lets read.
        let mut builder = tempfile::Builder::new();
        let file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder);
        let mut file = file.map_err(io)?;
        let length = (index.len() as u64).to_le_bytes();
        let hash = blake3::hash(index.as_bytes());
        for part in [&MAGIC[..], &length, hash.as_bytes(), index.as_bytes(), &all] {
            file.write_all(part).map_err(io)?;
        }
        file.persist(path).map(drop).map_err(|error| io(error.error))
    }
}

/// The window of the compressor: a whole group, within the format's limits.
fn window(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1 << 12, 64 << 20)
}

fn packed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut options = Lzma2Options::with_preset(9);
    options.lzma_options.dict_size = window(bytes.len());
    let mut writer = Lzma2Writer::new(Vec::new(), options);
    writer.write_all(bytes)?;
    writer.finish()
}

/// Hash of all sources of kernels.
fn own_sources() -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in sources() {
        hasher.update(name.as_bytes()).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
