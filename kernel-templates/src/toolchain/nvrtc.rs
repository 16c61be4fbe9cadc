//! NVRTC itself: opening the library, and compiling with it.
//!
//! Its functions are looked up here and not by cudarc, which opens `libnvrtc.so` by name, whichever version the loader finds first,
//! once and for all: it would ignore the library that was chosen wherever another one is on the loader's path, could not go on to the
//! next after one that does not work, and panics where a function is missing.

#![allow(unsafe_code)]

use super::locate::{self, Candidate, Surroundings};
use super::{NvrtcError, Rejected, fetch};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What NVRTC's functions return (`nvrtcResult`). An integer rather than an enum, as a newer library may return what that has not.
type Code = c_int;

const SUCCESS: Code = 0;
const COMPILATION: Code = 6;

/// A program of NVRTC (`nvrtcProgram`): an opaque pointer.
type Handle = *mut c_void;

/// A kernel that proves a library: NVRTC opens the library of its builtins only when it compiles.
const SMOKE: Source<'static> = Source {
    name: "smoke.cu",
    text: "extern \"C\" __global__ void smoke(float* x) { x[threadIdx.x] = __expf(x[threadIdx.x]); }",
    headers: &[],
};

/// A source to compile.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name in the log.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Name and text of each header that it may include; no other is found unless an option adds a folder.
    pub headers: &'a [(&'a str, &'a str)],
}

/// What a source was compiled to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The binary.
    pub cubin: Vec<u8>,
    /// The compiler's whole log: warnings, and what options ask to be printed.
    pub log: String,
}

/// A loaded NVRTC that works. All threads may use it at once.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    path: PathBuf,
    architectures: Vec<u32>,
}

/// The process's one, once a library was found.
static LOADED: OnceLock<Nvrtc> = OnceLock::new();

/// Held while a library is searched, so that two threads do not both try them all.
static SEARCH: Mutex<()> = Mutex::new(());

impl Nvrtc {
    /// The NVRTC of this process. The first call that succeeds searches, as [`candidates`](super::candidates) says, for a
    /// library that compiles a kernel; later ones return the same, whatever their cache folder.
    ///
    /// # Errors
    /// [`NvrtcError::Setting`] if `TILEWRIGHT_NVRTC` is set and cannot be used, [`NvrtcError::NotFound`] if nothing else can.
    pub fn load(cache: &Path) -> Result<&'static Nvrtc, NvrtcError> {
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let _one_at_a_time = SEARCH.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let found = Self::search(cache)?;
        Ok(LOADED.get_or_init(|| found))
    }

    /// As [`Nvrtc::load`], but where no library is found the pinned one is downloaded into the cache folder.
    ///
    /// # Errors
    /// As [`Nvrtc::load`] and [`fetch`](super::fetch).
    pub fn load_or_fetch(cache: &Path) -> Result<&'static Nvrtc, NvrtcError> {
        match Self::load(cache) {
            Err(NvrtcError::NotFound { .. }) => {
                fetch::fetch(cache)?;
                Self::load(cache)
            }
            other => other,
        }
    }

    fn search(cache: &Path) -> Result<Nvrtc, NvrtcError> {
        let around = Surroundings::of_process();
        // Those that the loader finds are opened first of all: once a library of that name is open, from whatever file and
        // even if it is then refused, the loader gives that one for the name.
        let opened: Vec<_> = locate::candidates(&around, cache)?
            .into_iter()
            .map(|candidate| {
                let library = match candidate {
                    Candidate::Loader(name) => Some(open_library(Path::new(name))),
                    Candidate::File(_) => None,
                };
                (candidate, library)
            })
            .collect();

        let mut rejected = Vec::new();
        for (candidate, library) in opened {
            let reason = match (&candidate, library) {
                (Candidate::Loader(name), Some(Ok(library))) => {
                    match Self::with(&library, Path::new(name), true) {
                        Ok(found) => return Ok(found),
                        Err(reason) => reason,
                    }
                }
                // That a name is not on the loader's path is no news.
                (Candidate::Loader(_), _) => continue,
                (Candidate::File(path), _) => match Self::open(path) {
                    Ok(found) => return Ok(found),
                    Err(reason) => reason,
                },
            };
            rejected.push(Rejected { candidate, reason });
        }
        Err(match (locate::setting(&around), rejected.pop()) {
            (Some(value), Some(Rejected { candidate, reason })) => {
                NvrtcError::Setting { value, reason: format!("{candidate} does not work: {reason}") }
            }
            (_, last) => {
                rejected.extend(last);
                NvrtcError::NotFound { rejected }
            }
        })
    }

    /// Opens a file; refuses it with the reason in words.
    fn open(path: &Path) -> Result<Nvrtc, String> {
        let library = open_library(path).map_err(|error| in_full(&error))?;
        Self::with(&library, path, false)
    }

    /// Tries an open library. Which file it is has yet to be found out if it was opened by name.
    fn with(library: &ManuallyDrop<Library>, path: &Path, is_name: bool) -> Result<Nvrtc, String> {
        let functions = Functions::of(library).map_err(|error| in_full(&error))?;
        let file = if is_name { mapped_file(functions.version as usize) } else { None };
        let path = file.unwrap_or_else(|| path.to_owned());
        let version = functions.version(&path).map_err(|error| error.to_string())?;
        if version.0 < 12 {
            return Err(format!("it is of CUDA {}.{}, 12 is needed", version.0, version.1));
        }
        open_builtins(&path, version);
        let architectures = functions.architectures(&path).map_err(|error| error.to_string())?;
        let newest = architectures.last().copied().unwrap_or(90);
        let nvrtc = Nvrtc { functions, version, path, architectures };
        match nvrtc.compile(&SMOKE, &[format!("--gpu-architecture=sm_{newest}")]) {
            Ok(_) => Ok(nvrtc),
            Err(NvrtcError::Compile { log, .. }) => {
                // On one line, as it goes into a list of reasons.
                let words: Vec<&str> = log.trim_end_matches(['.', '\n']).split_whitespace().collect();
                Err(format!("a trial kernel does not compile: {}", words.join(" ")))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Major and minor version of its CUDA.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Numbers of the architectures that it compiles for, ascending: 80 for `sm_80`.
    pub fn architectures(&self) -> &[u32] {
        &self.architectures
    }

    /// Compiles a source to a cubin; one of the options is `Arch::option`.
    ///
    /// # Errors
    /// [`NvrtcError::Compile`] with the log if the source or an option is wrong; others if NVRTC cannot be called with these
    /// texts, or fails by itself.
    pub fn compile(&self, source: &Source<'_>, options: &[String]) -> Result<Compiled, NvrtcError> {
        let option_texts = c_strings("an option", options.iter().map(String::as_str))?;
        let option_pointers = pointers(&option_texts);
        let option_count = count("options", options.len())?;

        let program = Program::new(self, source)?;
        // SAFETY: the program is live, and the array has as many NUL-terminated strings as the count says; both outlive the
        // call, which keeps none of them.
        let code =
            unsafe { (self.functions.compile)(program.handle, option_count, option_pointers.as_ptr()) };
        let log = program.log();
        if code != SUCCESS {
            let log = log.unwrap_or_default();
            // Other failures, such as a wrong option, are explained in the log too.
            return Err(if code == COMPILATION || !log.is_empty() {
                NvrtcError::Compile { name: source.name.to_owned(), options: options.to_vec(), log }
            } else {
                self.functions.error("nvrtcCompileProgram", code, &self.path)
            });
        }
        let log = log?;
        let cubin = program.cubin()?;
        if cubin.is_empty() {
            return Err(NvrtcError::NoCubin { name: source.name.to_owned() });
        }
        Ok(Compiled { cubin, log })
    }
}

/// NVRTC's functions, valid for as long as the process lives since their library is never closed.
#[derive(Debug)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code,
    architecture_count: unsafe extern "C" fn(*mut c_int) -> Code,
    architectures: unsafe extern "C" fn(*mut c_int) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    destroy: unsafe extern "C" fn(*mut Handle) -> Code,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Code,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
}

impl Functions {
    fn of(library: &ManuallyDrop<Library>) -> Result<Functions, libloading::Error> {
        // SAFETY: each name is that of a function with the type of its field, by NVRTC's header of CUDA 12 and 13. The
        // library is in `ManuallyDrop`, so it stays open.
        unsafe {
            Ok(Functions {
                version: *library.get(c"nvrtcVersion")?,
                architecture_count: *library.get(c"nvrtcGetNumSupportedArchs")?,
                architectures: *library.get(c"nvrtcGetSupportedArchs")?,
                error_string: *library.get(c"nvrtcGetErrorString")?,
                create: *library.get(c"nvrtcCreateProgram")?,
                destroy: *library.get(c"nvrtcDestroyProgram")?,
                compile: *library.get(c"nvrtcCompileProgram")?,
                log_size: *library.get(c"nvrtcGetProgramLogSize")?,
                log: *library.get(c"nvrtcGetProgramLog")?,
                cubin_size: *library.get(c"nvrtcGetCUBINSize")?,
                cubin: *library.get(c"nvrtcGetCUBIN")?,
            })
        }
    }

    fn version(&self, library: &Path) -> Result<(u32, u32), NvrtcError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both point to integers of ours.
        let code = unsafe { (self.version)(&mut major, &mut minor) };
        self.check("nvrtcVersion", code, library)?;
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }

    fn architectures(&self, library: &Path) -> Result<Vec<u32>, NvrtcError> {
        let mut count = 0;
        // SAFETY: the pointer is to an integer of ours.
        let code = unsafe { (self.architecture_count)(&mut count) };
        self.check("nvrtcGetNumSupportedArchs", code, library)?;
        let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has room for as many integers as the library has just said that it writes.
        let code = unsafe { (self.architectures)(numbers.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", code, library)?;
        let mut numbers: Vec<u32> =
            numbers.into_iter().filter_map(|number| u32::try_from(number).ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn check(&self, function: &'static str, code: Code, library: &Path) -> Result<(), NvrtcError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(function, code, library)) }
    }

    fn error(&self, function: &'static str, code: Code, library: &Path) -> NvrtcError {
        // SAFETY: any code may be asked for.
        let text = unsafe { (self.error_string)(code) };
        let message = if text.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: what is not null is a constant string of the library, which is never closed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        NvrtcError::Call { function, code, message, library: library.to_owned() }
    }
}

/// A program that NVRTC holds, destroyed with this.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, source: &Source<'_>) -> Result<Self, NvrtcError> {
        let text = c_string(source.name, source.text)?;
        let name = c_string("the source's name", source.name)?;
        let header_texts = c_strings("a header", source.headers.iter().map(|(_, text)| *text))?;
        let header_names = c_strings("a header's name", source.headers.iter().map(|(name, _)| *name))?;
        let (text_pointers, name_pointers) = (pointers(&header_texts), pointers(&header_names));
        let headers = count("headers", source.headers.len())?;

        let mut program = Program { nvrtc, handle: std::ptr::null_mut() };
        // SAFETY: the handle is ours to be written, all strings are NUL-terminated, both arrays have as many as the count
        // says, and all of them outlive the call, which copies them.
        let code = unsafe {
            (nvrtc.functions.create)(
                &mut program.handle,
                text.as_ptr(),
                name.as_ptr(),
                headers,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        nvrtc.functions.check("nvrtcCreateProgram", code, &nvrtc.path)?;
        Ok(program)
    }

    fn log(&self) -> Result<String, NvrtcError> {
        let Functions { log_size, log, .. } = self.nvrtc.functions;
        let mut bytes = self.output(["nvrtcGetProgramLogSize", "nvrtcGetProgramLog"], log_size, log)?;
        // The size counts the NUL at the end.
        while bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let Functions { cubin_size, cubin, .. } = self.nvrtc.functions;
        self.output(["nvrtcGetCUBINSize", "nvrtcGetCUBIN"], cubin_size, cubin)
    }

    /// Reads one of the program's outputs with the functions of these names for its size and its bytes.
    fn output(
        &self,
        names: [&'static str; 2],
        size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    ) -> Result<Vec<u8>, NvrtcError> {
        let functions = &self.nvrtc.functions;
        let mut bytes = 0;
        // SAFETY: the program is live, and the size is ours to be written.
        let code = unsafe { size(self.handle, &mut bytes) };
        functions.check(names[0], code, &self.nvrtc.path)?;
        let mut output = vec![0_u8; bytes];
        if bytes > 0 {
            // SAFETY: the program is live, and the buffer has room for as many bytes as the library has just said.
            let code = unsafe { read(self.handle, output.as_mut_ptr().cast()) };
            functions.check(names[1], code, &self.nvrtc.path)?;
        }
        Ok(output)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: NVRTC made the handle, and nothing uses it after this. What it returns changes nothing.
            unsafe { (self.nvrtc.functions.destroy)(&mut self.handle) };
        }
    }
}

/// Opens a library for good: NVRTC's static objects do not expect to be unloaded, and functions taken from it stay valid.
fn open_library(name: &Path) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // Local, so that the symbols of a library that is refused do not get into the one that is taken.
    // SAFETY: the file is a library that the user installed under NVRTC's name or named himself; its initialisers are as
    // trusted as those of any library that this process is linked to.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map(ManuallyDrop::new)
}

/// Opens the builtins beside an NVRTC. It asks for them by name only, which the loader finds outside its own path only if
/// they are open already. The smoke compile says if they are missing.
fn open_builtins(nvrtc: &Path, (major, minor): (u32, u32)) {
    let is_alternative =
        nvrtc.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.alt."));
    let alternative = if is_alternative { ".alt" } else { "" };
    let name = format!("libnvrtc-builtins{alternative}.so.{major}.{minor}");
    // The file may be a link into the folder in which its builtins are.
    for file in [Some(nvrtc.to_owned()), nvrtc.canonicalize().ok()].into_iter().flatten() {
        let builtins = file.with_file_name(&name);
        if builtins.is_absolute() && builtins.is_file() && open_library(&builtins).is_ok() {
            return;
        }
    }
}

/// The loader's own words, which libloading keeps in the error's source.
fn in_full(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The file that is mapped at an address of this process.
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| mapping(line, address))
}

/// The path in a line of `/proc/self/maps`, if the address is in its range.
fn mapping(line: &str, address: usize) -> Option<PathBuf> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    // The path is the first thing with a slash, to the end of the line: it may have spaces in it.
    range.contains(&address).then(|| line.find('/').map(|at| PathBuf::from(&line[at..])))?
}

fn c_string(what: &str, text: &str) -> Result<CString, NvrtcError> {
    CString::new(text).map_err(|_| NvrtcError::Nul { what: what.to_owned() })
}

fn c_strings<'a>(what: &str, texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>, NvrtcError> {
    texts.map(|text| c_string(what, text)).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn count(what: &'static str, count: usize) -> Result<c_int, NvrtcError> {
    c_int::try_from(count).map_err(|_| NvrtcError::TooMany { what, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libnvrtc.so.13");
        std::fs::write(&file, "not a library").unwrap();
        let reason = Nvrtc::open(&file).unwrap_err();
        assert!(reason.contains("libnvrtc.so.13"), "{reason}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let reason = Nvrtc::open(Path::new("libc.so.6")).unwrap_err();
        assert!(reason.contains("nvrtcVersion"), "{reason}");
    }

    #[test]
    fn the_file_behind_an_address_is_found() {
        let library = open_library(Path::new("libc.so.6")).unwrap();
        // SAFETY: the symbol is only looked at as an address.
        let address = unsafe { library.get::<unsafe extern "C" fn()>(c"malloc") }.unwrap();
        let file = mapped_file(*address as usize).unwrap();
        assert!(file.to_string_lossy().contains("libc"), "{}", file.display());
        assert_eq!(mapped_file(0), None);
    }

    #[test]
    fn a_mapped_path_may_have_spaces() {
        let line = "7f00-7fff r-xp 00000000 00:2f 12   /opt/my cuda/libnvrtc.so.13";
        assert_eq!(mapping(line, 0x7f10), Some(PathBuf::from("/opt/my cuda/libnvrtc.so.13")));
        assert_eq!(mapping(line, 0x7fff), None);
        assert_eq!(mapping("7f00-7fff rw-p 00000000 00:00 0", 0x7f10), None);
    }
}
