//! Compiled kernels kept by content, so that a source is compiled once per NVRTC and options on a machine.
//!
//! An entry is a folder with the binary, the compiler's log, the source for a reader, and checksums. It is built aside and
//! renamed into place, so other processes see all of it or none.

use super::Source;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use thiserror::Error;

const CUBIN: &str = "kernel.cubin";
const LOG: &str = "log.txt";
const SOURCE: &str = "source.cu";
/// In the form of `b3sum`, which can check it. Its modification time is when the entry was last used.
const SUMS: &str = "checksums";

/// What the names of folders start with that are being built or removed.
const ASIDE: &str = ".aside-";

/// A folder aside that is this old was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A failure to use the cache. A compilation goes on without it.
#[derive(Debug, Error)]
pub enum CacheError {
    /// No variable says where the cache is.
    #[error("no folder for the cache of compiled kernels: set TILEWRIGHT_CACHE, XDG_CACHE_HOME or HOME")]
    NoFolder,
    /// A text is no key of this cache.
    #[error("{0:?} is no key of the cache of compiled kernels: make keys with CubinCache::key")]
    Key(String),
    /// A file or folder of the cache could not be used.
    #[error("cannot {action} {}: {source}; make it writable, or set TILEWRIGHT_CACHE to a folder that is", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// A compiled kernel from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedCubin {
    /// The binary.
    pub cubin: Vec<u8>,
    /// The compiler's whole log.
    pub log: String,
}

/// A folder of compiled kernels, shared by any number of processes.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
    max_bytes: u64,
    /// Bytes that may be put in before the folder is looked through again.
    unseen: Arc<AtomicU64>,
}

/// Part of the room that is left after which the folder is looked through again: other processes put kernels in, too.
const ROOM_TO_USE: u64 = 4;

impl CubinCache {
    /// Opens the cache in a folder, which is created if need be. What is put in later may take `max_bytes` in all.
    ///
    /// # Errors
    /// [`CacheError::Io`] if the folder cannot be created.
    pub fn open(folder: impl Into<PathBuf>, max_bytes: u64) -> Result<Self, CacheError> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(|source| io_error("create", &folder, source))?;
        Ok(CubinCache { folder, max_bytes, unseen: Arc::default() })
    }

    /// The user's folder for what can be made again: `TILEWRIGHT_CACHE`, else `tilewright` in `XDG_CACHE_HOME` or in
    /// `~/.cache`.
    ///
    /// # Errors
    /// [`CacheError::NoFolder`] if none of the variables is set.
    pub fn default_folder() -> Result<PathBuf, CacheError> {
        default_folder(|name| std::env::var_os(name))
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The key of what this version of NVRTC makes of a source, its headers included, with these options in this order.
    pub fn key(nvrtc_version: (u32, u32), options: &[String], source: &Source<'_>) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("tilewright cubin cache, entries of format 1");
        hasher.update(&nvrtc_version.0.to_le_bytes());
        hasher.update(&nvrtc_version.1.to_le_bytes());
        // Each text with its length and each list with its count, so that no two inputs run together to the same bytes.
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(source.name);
        text(source.text);
        text(&options.len().to_string());
        options.iter().for_each(|option| text(option));
        text(&source.headers.len().to_string());
        for (name, content) in source.headers {
            text(name);
            text(content);
        }
        hasher.finalize().to_hex().to_string()
    }

    /// What was put in under a key; `None` if nothing was, or if it is damaged.
    pub fn get(&self, key: &str) -> Option<CachedCubin> {
        if !is_key(key) {
            return None;
        }
        let folder = self.folder.join(key);
        let entry = read(&folder)?;
        // A cache that may only be read still serves; its entries just seem unused.
        let _ = File::open(folder.join(SUMS)).and_then(|file| file.set_modified(SystemTime::now()));
        Some(entry)
    }

    /// Puts a compiled kernel in, unless it is there whole. Every time that kernels may have taken a quarter of the room that was left, those unused
    /// for longest are removed until the size limit is kept: work for each put does not grow with the entries.
    ///
    /// # Errors
    /// [`CacheError::Key`] for a key that is none, [`CacheError::Io`] if the folder cannot be written. The kernel can be used
    /// all the same.
    pub fn put(&self, key: &str, entry: &CachedCubin, source: &Source<'_>) -> Result<(), CacheError> {
        if !is_key(key) {
            return Err(CacheError::Key(key.to_owned()));
        }
        self.insert(key, entry, source)?;
        let bytes = (entry.cubin.len() + entry.log.len() + source.text.len()) as u64;
        let enough =
            self.unseen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if enough.is_err() {
            let room = self.evict(key);
            self.unseen.store(room / ROOM_TO_USE, Ordering::Relaxed);
        }
        Ok(())
    }

    fn insert(&self, key: &str, entry: &CachedCubin, source: &Source<'_>) -> Result<(), CacheError> {
        let aside = self.aside()?;
        // A folder within, as the one aside is readable to its owner only.
        let fresh = aside.path().join(key);
        fs::create_dir(&fresh).map_err(|source| io_error("create", &fresh, source))?;
        let sums = sums(&entry.cubin, entry.log.as_bytes());
        for (name, bytes) in [
            (CUBIN, entry.cubin.as_slice()),
            (LOG, entry.log.as_bytes()),
            (SOURCE, source.text.as_bytes()),
            (SUMS, sums.as_bytes()),
        ] {
            let file = fresh.join(name);
            fs::write(&file, bytes).map_err(|source| io_error("write", &file, source))?;
        }

        let target = self.folder.join(key);
        // Between moving a damaged entry away and this one in, another process may do the same: then look again.
        let mut last = None;
        for attempt in 0..8 {
            match fs::rename(&fresh, &target) {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
            // A lost race is as good as a won one.
            if read(&target).is_some() {
                return Ok(());
            }
            let _ = fs::rename(&target, aside.path().join(format!("damaged-{attempt}")));
        }
        let source = last.unwrap_or_else(|| io::ErrorKind::Other.into());
        Err(io_error("move the new entry to", &target, source))
    }

    /// Removes entries, those unused for longest first, until the size limit is kept. What cannot be removed now will be next
    /// time: the cache serves as well with it. Returns what of the limit is left.
    fn evict(&self, newest: &str) -> u64 {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if is_key(name) {
                let used = fs::metadata(path.join(SUMS)).and_then(|metadata| metadata.modified()).ok();
                // An entry without checksums is damaged, and goes first; the one just put in goes last, whatever the clock.
                entries.push((name == newest, used, size(&path), path));
            } else if name.starts_with(ASIDE) && age(&path).is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_dir_all(path);
            }
        }
        let mut total: u64 = entries.iter().map(|(_, _, bytes, _)| bytes).sum();
        if total <= self.max_bytes {
            return self.max_bytes - total;
        }
        entries.sort();
        let Ok(aside) = self.aside() else { return 0 };
        for (_, _, bytes, path) in entries {
            if total <= self.max_bytes {
                break;
            }
            // Renamed away at once: another process finds the entry whole or not at all. One that reads its files meanwhile
            // sees by the checksums if it did not get all of it.
            let gone = match path.file_name() {
                Some(name) => fs::rename(&path, aside.path().join(name)).is_ok() || !path.exists(),
                None => false,
            };
            if gone {
                total = total.saturating_sub(bytes);
            }
        }
        self.max_bytes.saturating_sub(total)
    }

    fn aside(&self) -> Result<TempDir, CacheError> {
        let make = || TempDir::with_prefix_in(ASIDE, &self.folder);
        make()
            .or_else(|_| {
                // The folder may have been removed since the cache was opened.
                fs::create_dir_all(&self.folder)?;
                make()
            })
            .map_err(|source| io_error("create a folder in", &self.folder, source))
    }
}

fn default_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, CacheError> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG rules say that a relative path is to be ignored.
    let user = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    folder("TILEWRIGHT_CACHE")
        .or_else(|| user.map(|user| user.join("tilewright")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/tilewright")))
        .ok_or(CacheError::NoFolder)
}

/// Whether a text is the hexadecimal form of a hash, and so a safe name of a folder.
fn is_key(text: &str) -> bool {
    text.len() == 2 * blake3::OUT_LEN && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn sums(cubin: &[u8], log: &[u8]) -> String {
    format!("{}  {CUBIN}\n{}  {LOG}\n", blake3::hash(cubin), blake3::hash(log))
}

/// Reads an entry; `None` if it is not there whole.
fn read(folder: &Path) -> Option<CachedCubin> {
    let cubin = fs::read(folder.join(CUBIN)).ok()?;
    let log = fs::read_to_string(folder.join(LOG)).ok()?;
    let expected = fs::read_to_string(folder.join(SUMS)).ok()?;
    (sums(&cubin, log.as_bytes()) == expected).then_some(CachedCubin { cubin, log })
}

/// Bytes in an entry's files.
fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?.elapsed().ok()
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> CacheError {
    CacheError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SMALL: Source<'static> = Source { name: "a.cu", text: "text", headers: &[] };

    fn entry(byte: u8, bytes: usize) -> CachedCubin {
        CachedCubin { cubin: vec![byte; bytes], log: format!("log of {byte}\n") }
    }

    fn key(number: u32) -> String {
        CubinCache::key((13, number), &[], &SMALL)
    }

    fn cache(max_bytes: u64) -> (TempDir, CubinCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::open(folder.path().join("cubins"), max_bytes).unwrap();
        (folder, cache)
    }

    /// Names in the cache's folder.
    fn names(cache: &CubinCache) -> Vec<String> {
        let entries = fs::read_dir(cache.folder()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn gives_back_what_was_put_in_and_keeps_the_source_beside_it() {
        let (_folder, cache) = cache(1 << 20);
        assert_eq!(cache.get(&key(0)), None);
        cache.put(&key(0), &entry(1, 1000), &SMALL).unwrap();
        assert_eq!(cache.get(&key(0)), Some(entry(1, 1000)));
        assert_eq!(fs::read_to_string(cache.folder().join(key(0)).join("source.cu")).unwrap(), "text");
        assert_eq!(names(&cache), [key(0)]);
    }

    #[test]
    fn damage_of_any_kind_counts_as_absent_and_is_healed() {
        let (_folder, cache) = cache(1 << 20);
        let folder = cache.folder().join(key(0));
        type Damage = fn(&Path);
        let damages: [Damage; 7] = [
            |folder| fs::write(folder.join(CUBIN), [1; 999]).unwrap(),
            |folder| fs::write(folder.join(CUBIN), [2; 1000]).unwrap(),
            |folder| fs::write(folder.join(LOG), [0xff]).unwrap(),
            |folder| fs::write(folder.join(SUMS), "").unwrap(),
            |folder| fs::remove_file(folder.join(SUMS)).unwrap(),
            |folder| fs::remove_dir_all(folder).unwrap(),
            |folder| {
                fs::remove_dir_all(folder).unwrap();
                fs::write(folder, "a file").unwrap();
            },
        ];
        for damage in damages {
            cache.put(&key(0), &entry(1, 1000), &SMALL).unwrap();
            assert_eq!(cache.get(&key(0)), Some(entry(1, 1000)));
            damage(&folder);
            assert_eq!(cache.get(&key(0)), None);
        }
        cache.put(&key(0), &entry(1, 1000), &SMALL).unwrap();
        assert_eq!(cache.get(&key(0)), Some(entry(1, 1000)));
        assert_eq!(names(&cache), [key(0)]);
    }

    #[test]
    fn least_recently_used_entries_go_first() {
        let (_folder, cache) = cache(4000);
        let age = |number: u32, seconds: u64| {
            let file = File::open(cache.folder().join(key(number)).join(SUMS)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for number in 0..3 {
            cache.put(&key(number), &entry(number as u8, 1000), &SMALL).unwrap();
            age(number, 100 - u64::from(number));
        }
        // The oldest is used, so the second is the one to go.
        assert!(cache.get(&key(0)).is_some());
        cache.put(&key(3), &entry(3, 1000), &SMALL).unwrap();
        let kept: Vec<bool> = (0..4).map(|number| cache.get(&key(number)).is_some()).collect();
        assert_eq!(kept, [true, false, true, true]);
        assert!(names(&cache).iter().all(|name| is_key(name)));
    }

    #[test]
    fn the_limit_holds_even_for_one_entry() {
        let (_folder, cache) = cache(500);
        cache.put(&key(0), &entry(1, 1000), &SMALL).unwrap();
        assert_eq!(names(&cache), [] as [&str; 0]);
    }

    #[test]
    fn what_a_killed_process_left_is_cleared_in_time() {
        let (_folder, cache) = cache(1 << 20);
        for (name, seconds) in [(".aside-old", 7200), (".aside-new", 60)] {
            let path = cache.folder().join(name);
            fs::create_dir(&path).unwrap();
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::open(&path).unwrap().set_modified(time).unwrap();
        }
        cache.put(&key(0), &entry(1, 10), &SMALL).unwrap();
        let mut expected = [".aside-new".to_owned(), key(0)];
        expected.sort();
        assert_eq!(names(&cache), expected);
    }

    #[test]
    fn writers_and_readers_of_one_key_do_not_disturb_each_other() {
        let (_folder, cache) = cache(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..40 {
                        if thread == 0 && round % 4 == 0 {
                            // A writer must heal this while others do the same.
                            let _ = fs::write(cache.folder().join(key(0)).join(CUBIN), "damaged");
                        }
                        cache.put(&key(0), &entry(7, 5000), &SMALL).unwrap();
                        if let Some(found) = cache.get(&key(0)) {
                            assert_eq!(found, entry(7, 5000));
                        }
                    }
                });
            }
        });
        cache.put(&key(0), &entry(7, 5000), &SMALL).unwrap();
        assert_eq!(cache.get(&key(0)), Some(entry(7, 5000)));
        assert_eq!(names(&cache), [key(0)]);
    }

    #[test]
    fn readers_see_whole_entries_while_others_evict() {
        let (_folder, cache) = cache(12_000);
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..60 {
                        let number = (round * 7 + thread * 3) % 10;
                        let expected = entry(number as u8, 3000);
                        match cache.get(&key(number)) {
                            Some(found) => assert_eq!(found, expected),
                            None => cache.put(&key(number), &expected, &SMALL).unwrap(),
                        }
                    }
                });
            }
        });
        assert!(names(&cache).len() <= 4, "{:?}", names(&cache));
    }

    #[test]
    fn a_text_that_is_no_key_reaches_no_file() {
        let (folder, cache) = cache(1 << 20);
        for text in ["", "..", "../x", "ABC", &key(0).to_uppercase(), &key(0)[1..]] {
            assert_eq!(cache.get(text), None);
            let error = cache.put(text, &entry(1, 1), &SMALL).unwrap_err();
            assert!(matches!(error, CacheError::Key(_)));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_typed_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = CubinCache::open(file.join("cubins"), 1).unwrap_err().to_string();
        assert!(error.contains("file/cubins") && error.contains("TILEWRIGHT_CACHE"), "{error}");

        let (_folder, cache) = cache(1 << 20);
        fs::remove_dir(cache.folder()).unwrap();
        fs::write(cache.folder(), "").unwrap();
        let error = cache.put(&key(0), &entry(1, 1), &SMALL).unwrap_err();
        assert!(matches!(error, CacheError::Io { .. }));
    }

    #[test]
    fn default_folder_follows_the_variables() {
        let find = |variables: &[(&str, &str)]| {
            let variables: BTreeMap<_, _> = variables.iter().copied().collect();
            default_folder(|name| variables.get(name).map(OsString::from))
                .map(|path| path.display().to_string())
                .map_err(|error| error.to_string())
        };
        let all = [("TILEWRIGHT_CACHE", "/t"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(find(&all).unwrap(), "/t");
        assert_eq!(find(&all[1..]).unwrap(), "/x/tilewright");
        assert_eq!(find(&all[2..]).unwrap(), "/h/.cache/tilewright");
        assert_eq!(
            find(&[("TILEWRIGHT_CACHE", ""), ("XDG_CACHE_HOME", "x"), ("HOME", "/h")]).unwrap(),
            "/h/.cache/tilewright"
        );
        assert!(find(&[]).unwrap_err().contains("TILEWRIGHT_CACHE"));
    }

    #[test]
    fn every_part_is_in_the_key() {
        let option = |text: &str| vec![text.to_owned()];
        let with = |name, text, headers| Source { name, text, headers };
        let keys = [
            CubinCache::key((13, 0), &[], &SMALL),
            CubinCache::key((13, 1), &[], &SMALL),
            CubinCache::key((12, 0), &[], &SMALL),
            CubinCache::key((13, 0), &option("-a"), &SMALL),
            CubinCache::key((13, 0), &option(""), &SMALL),
            CubinCache::key((13, 0), &["-a".to_owned(), "-b".to_owned()], &SMALL),
            CubinCache::key((13, 0), &["-b".to_owned(), "-a".to_owned()], &SMALL),
            CubinCache::key((13, 0), &option("-a-b"), &SMALL),
            CubinCache::key((13, 0), &[], &with("b.cu", "text", &[])),
            CubinCache::key((13, 0), &[], &with("a.cut", "ext", &[])),
            CubinCache::key((13, 0), &[], &with("a.cu", "text", &[("h", "1")])),
            CubinCache::key((13, 0), &[], &with("a.cu", "text", &[("h1", "")])),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(keys.iter().all(|key| is_key(key)));
    }

    proptest! {
        #[test]
        fn texts_do_not_run_together(texts in prop::collection::vec("[a-c]{0,3}", 0..4), at in 0_usize..4) {
            // Moving the border between options and headers, or joining two texts, is another key.
            let source = |headers| Source { name: "n", text: "t", headers };
            let at = at.min(texts.len());
            let headers: Vec<_> = texts[at..].iter().map(|text| (text.as_str(), "")).collect();
            let split = CubinCache::key((13, 0), &texts[..at], &source(&headers));
            let joined = CubinCache::key((13, 0), &[texts.concat()], &source(&[]));
            let is_same = at == 1 && texts.len() == 1;
            prop_assert_eq!(split == joined, is_same);
        }
    }
}
