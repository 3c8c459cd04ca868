//! Handles a processor that lacks instructions this library was built for (`-Ctarget-cpu=native`, on another machine).
//!
//! Any function of such a library may end the program by SIGILL. So the code here is small, and written so that a
//! compiler has no reason for vector instructions: bytes are copied one by one. If the library came by LD_PRELOAD, the
//! program is started again without it, before its `main`. Otherwise no hook does anything
//! ([`super::wiped::disabled`]), which may not be enough.

use super::write;
use gpumem_wire::processor::{COMPILED_IN, lacking_here};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::{read_volatile, write_volatile};

/// Read by the inspector from the file, at [`gpumem_wire::processor::SECTION`].
#[used]
#[unsafe(link_section = ".gpumem.needs")]
static NEEDS: u64 = COMPILED_IN.to_le();

/// Returns a feature that this library needs and the processor lacks.
pub(crate) fn lacking() -> Option<&'static str> {
    // SAFETY: it is a word of this library, which nothing changes. Volatile: what the file says counts, so that tests
    // can write it there.
    lacking_here(u64::from_le(unsafe { read_volatile(&NEEDS) }))
}

/// The variable, as it appears in an environment.
const PRELOAD: &CStr = c"LD_PRELOAD=";
/// File name of this library.
const NAME: &CStr = c"libgpumem.so";

/// Reports the missing feature and starts the program again without this library. Returns if that cannot be done.
///
/// # Safety
/// `argv` and `environment` are those of the process, and no other thread runs: the loader gives them to constructors,
/// before `main`.
#[cold]
pub(super) unsafe fn step_aside(missing: &str, argv: *const *const c_char, environment: *mut *mut c_char) {
    // SAFETY: both names end in NUL, and the value is a C string of the environment, which no other code changes
    // meanwhile.
    let quiet = unsafe {
        let log = libc::getenv(c"GPUMEM_LOG".as_ptr());
        !log.is_null() && libc::strcmp(log, c"quiet".as_ptr()) == 0
    };
    if !quiet {
        say(missing);
    }
    // SAFETY: getauxval takes a number. Without a base the program is the loader itself, whose command line is another.
    let by_loader = unsafe { libc::getauxval(libc::AT_BASE) } == 0;
    // SAFETY: our caller vouches for both lists. `cut` shortens strings of the environment, which lie on the main
    // stack and may be written.
    unsafe {
        if !by_loader && !argv.is_null() && !environment.is_null() && cut(environment) {
            libc::execve(c"/proc/self/exe".as_ptr(), argv, environment.cast());
        }
    }
}

fn say(missing: &str) {
    let mut line = Line { bytes: [const { MaybeUninit::uninit() }; 256], len: 0 };
    line.add("gpumem: this processor has no ");
    line.add(missing);
    line.add(", which this libgpumem.so was built to use: the program runs without gpumem; use one that was built ");
    line.add("without -Ctarget-cpu and -Ctarget-feature\n");
    write::to_stderr(line.written());
}

struct Line {
    bytes: [MaybeUninit<u8>; 256],
    len: usize,
}

impl Line {
    fn add(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            let Some(place) = self.bytes.get_mut(self.len) else { return };
            // SAFETY: the place is a byte of this line.
            unsafe { write_volatile(place.as_mut_ptr(), byte) };
            self.len += 1;
        }
    }

    fn written(&self) -> &[u8] {
        // SAFETY: `add` has written the first `len` bytes, and `len` is no more than there are.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }
}

/// Removes this library from LD_PRELOAD, and LD_PRELOAD from the environment if it is then empty. Returns false and
/// changes nothing if this library is not in it.
///
/// # Safety
/// `environment` is a list of C strings that ends in NULL. List and strings may be written, and no other code uses
/// them.
unsafe fn cut(environment: *mut *mut c_char) -> bool {
    let mut at = environment;
    // SAFETY: the caller vouches for the list and its strings. No read goes past the NULL or a NUL: `behind` stops
    // where two strings differ, and `without_us` writes no more than it has read.
    unsafe {
        while !read_volatile(at).is_null() {
            let Some(value) = behind(read_volatile(at).cast(), PRELOAD) else {
                at = at.add(1);
                continue;
            };
            let (found, left) = without_us(value, false);
            if !found {
                return false;
            }
            without_us(value, true);
            while left == 0 && !read_volatile(at).is_null() {
                write_volatile(at, read_volatile(at.add(1)));
                at = at.add(1);
            }
            return true;
        }
    }
    false
}

/// Returns the rest of a text after `beginning`, if the text begins with it.
///
/// # Safety
/// `text` is a C string.
unsafe fn behind(mut text: *mut u8, beginning: &CStr) -> Option<*mut u8> {
    for &byte in beginning.to_bytes() {
        // SAFETY: no byte before this one was NUL, since each was one of `beginning`.
        unsafe {
            if read_volatile(text) != byte {
                return None;
            }
            text = text.add(1);
        }
    }
    Some(text)
}

/// Returns true if a value of LD_PRELOAD names this library, and the value's length without it. Writes the shorter
/// value only if `write`.
///
/// # Safety
/// `value` is a C string, which may be written.
unsafe fn without_us(value: *mut u8, write: bool) -> (bool, usize) {
    let (mut found, mut len, mut at) = (false, 0, value);
    let mut put = |byte: u8| {
        if write {
            // SAFETY: the caller lets the value be written, and no more is written than was read.
            unsafe { write_volatile(value.add(len), byte) };
        }
        len += 1;
    };
    // SAFETY: the caller passes a C string, and reads end at its NUL.
    unsafe {
        loop {
            let (start, mut name) = (at, at);
            while !matches!(read_volatile(at), 0 | b' ' | b':') {
                if read_volatile(at) == b'/' {
                    name = at.add(1);
                }
                at = at.add(1);
            }
            let end = read_volatile(at);
            if behind(name, NAME).is_some() {
                found = true;
            } else {
                let mut kept = start;
                while kept < at {
                    put(read_volatile(kept));
                    kept = kept.add(1);
                }
                // A separator, or the NUL.
                if kept > start && end != 0 {
                    put(end);
                }
            }
            if end == 0 {
                break;
            }
            at = at.add(1);
        }
    }
    if write {
        // SAFETY: without this library the value is no longer than it was, and the caller lets it be written.
        unsafe { write_volatile(value.add(len), 0) };
    }
    (found, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn cut_of(variables: &[&str]) -> (bool, Vec<String>) {
        let strings = variables.iter().map(|text| CString::new(*text).unwrap().into_raw());
        let mut list: Vec<*mut c_char> = strings.chain([std::ptr::null_mut()]).collect();
        // SAFETY: the list ends in NULL and holds this test's own strings, which are never freed.
        let (found, left) = unsafe {
            let found = cut(list.as_mut_ptr());
            let left = list.iter().take_while(|text| !text.is_null()).map(|text| CStr::from_ptr(*text));
            (found, left.map(|text| text.to_str().unwrap().to_owned()).collect())
        };
        // The strings are leaked: a shortened CString would be freed with a wrong length.
        (found, left)
    }

    #[test]
    fn only_this_library_is_taken_out_of_the_preload() {
        let cases = [
            ("/opt/libgpumem.so", ""),
            ("/opt/libgpumem.so:/a/b.so", "/a/b.so"),
            ("/a/b.so /opt/libgpumem.so c.so", "/a/b.so c.so"),
            ("libgpumem.so::b.so", "b.so"),
        ];
        for (value, left) in cases {
            let (found, variables) = cut_of(&["A=b", &format!("LD_PRELOAD={value}"), "C=d"]);
            let preload = format!("LD_PRELOAD={left}");
            let expected: Vec<&str> = match left {
                "" => vec!["A=b", "C=d"],
                _ => vec!["A=b", &preload, "C=d"],
            };
            let variables: Vec<&str> = variables.iter().map(|text| text.trim_end_matches([':', ' '])).collect();
            assert_eq!((found, variables), (true, expected), "{value}");
        }
        for value in ["", "/a/b.so", "/libgpumem.so/other.so", "xlibgpumem.so"] {
            let preload = format!("LD_PRELOAD={value}");
            assert_eq!(cut_of(&["A=b", &preload]), (false, vec!["A=b".to_owned(), preload.clone()]), "{value}");
        }
        assert_eq!(cut_of(&["A=b"]), (false, vec!["A=b".to_owned()]));
    }

    #[test]
    fn this_test_has_what_it_needs() {
        assert_eq!(lacking(), None);
    }
}
