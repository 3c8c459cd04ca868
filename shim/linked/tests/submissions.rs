//! Every function that gives the device work, waits for it or looks at memory, on a driver made for this
//! test: found by each door, it passes its arguments on and its answer back, and is counted from before the
//! driver gets the call until it is left.

use gpumem_abi::types::*;
use gpumem_linked::tested::{activity, is_peer_access_enabled, ours, row_named};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// A type of an argument: some value, and it as the driver's function tells of it.
trait Argument: Copy {
    const C: &str;
    fn some(seed: u64) -> Self;
    fn word(self) -> u64;
}

macro_rules! integers {
    ($($ty:ident $c:literal)*) => { $(
        impl Argument for $ty {
            const C: &str = $c;
            fn some(seed: u64) -> Self {
                seed as $ty
            }
            fn word(self) -> u64 {
                self as u64
            }
        }
    )* };
}
integers!(u8 "unsigned char" u16 "unsigned short" u32 "unsigned" i32 "int" u64 "unsigned long" usize "unsigned long");

impl<T> Argument for *mut T {
    const C: &str = "void *";
    fn some(seed: u64) -> Self {
        seed as *mut T
    }
    fn word(self) -> u64 {
        self as u64
    }
}

impl Argument for MemLocation {
    const C: &str = "struct location";
    fn some(seed: u64) -> Self {
        MemLocation { kind: seed as i32, id: (seed >> 32) as i32 }
    }
    fn word(self) -> u64 {
        u64::from(self.kind as u32) | u64::from(self.id as u32) << 32
    }
}

impl Argument for *const LaunchConfig {
    const C: &str = "void *";
    /// One that can be read, as the hook does.
    fn some(seed: u64) -> Self {
        // As long as the test runs.
        let config = Box::leak(Box::new([0_u64; 8]));
        config[0] = seed;
        config.as_ptr().cast()
    }
    fn word(self) -> u64 {
        self as u64
    }
}

impl Argument for EglFrame {
    const C: &str = "struct frame";
    fn some(seed: u64) -> Self {
        EglFrame { planes: [seed as usize; 3], words: [seed as u32; 9] }
    }
    fn word(self) -> u64 {
        self.planes.iter().fold(u64::from(self.words[8]), |sum, &plane| sum ^ plane as u64)
    }
}

/// The last call of a simulated function: its row and arguments.
static CALLED: Mutex<(usize, Vec<u64>)> = Mutex::new((usize::MAX, Vec::new()));
/// The status that the function returns.
static ANSWER: AtomicU32 = AtomicU32::new(0);
/// Not 0 if the function throws.
static THROW: AtomicU32 = AtomicU32::new(0);
/// Not 0 if a call was seen while nothing was counted as under way.
static QUIET_INSIDE: AtomicU32 = AtomicU32::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);

/// # Safety
/// `words` has `len` words, if `row` is one: the generated driver calls it so.
unsafe extern "C-unwind" fn inside(row: c_int, words: *const u64, len: c_int) -> Status {
    if row < 0 {
        // From many threads: only counts.
        INSIDE.fetch_add(1, SeqCst);
        QUIET_INSIDE.fetch_add(activity::submissions_if_none_open().is_some().into(), SeqCst);
        return SUCCESS;
    }
    QUIET_INSIDE.store(activity::submissions_if_none_open().is_some().into(), SeqCst);
    // SAFETY: the generated function passes an array of its own and its length, and waits until
    // this returns.
    let words = unsafe { std::slice::from_raw_parts(words, len as usize) };
    *CALLED.lock().unwrap() = (row as usize, words.to_vec());
    if THROW.load(SeqCst) != 0 {
        resume_unwind(Box::new(row));
    }
    ANSWER.load(SeqCst)
}

/// One row, and a call of our function for it.
struct Function {
    name: &'static str,
    base: &'static str,
    since: u32,
    per_thread: bool,
    module: &'static str,
    types: &'static [&'static str],
    /// Calls our function at an address; the words of its arguments, and its answer.
    call: fn(usize, u64) -> (Vec<u64>, Status),
}

macro_rules! functions {
    ($($name:ident [$base:literal $since:literal $flavour:ident = $sys:tt] => $module:ident::$hook:ident($($arg:ident: $ty:ty),*);)*) => {
        const ALL: &[Function] = &[$(Function {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread: matches!(stringify!($flavour).as_bytes(), b"ptds"),
            module: stringify!($module),
            types: functions!(@types $module $($ty),*),
            call: functions!(@call $module $($arg: $ty),*),
        },)*];
    };
    (@types submit $($ty:ty),*) => { &[$(<$ty as Argument>::C),*] };
    (@types sync $($ty:ty),*) => { &[$(<$ty as Argument>::C),*] };
    (@types peer $($ty:ty),*) => { &[$(<$ty as Argument>::C),*] };
    (@types $other:ident $($ty:ty),*) => { &[] };
    (@call submit $($rest:tt)*) => { functions!(@function $($rest)*) };
    (@call sync $($rest:tt)*) => { functions!(@function $($rest)*) };
    (@call peer $($rest:tt)*) => { functions!(@function $($rest)*) };
    (@call $other:ident $($rest:tt)*) => { |_, _| (Vec::new(), 0) };
    (@function $($arg:ident: $ty:ty),*) => {
        |address, seed| {
            // A value of its own for each argument, in all its bytes.
            #[allow(unused_mut, unused_variables)]
            let mut seeds = (1u64..).map(|i| (seed + i).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            $(let $arg = <$ty as Argument>::some(seeds.next().expect("one more"));)*
            // SAFETY: the address is that of the row's function, and the row has its types. The
            // driver behind it is this test's, which takes any value and follows no pointer.
            let status = unsafe {
                std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($ty),*) -> Status>(address)($($arg),*)
            };
            (vec![$($arg.word()),*], status)
        }
    };
}
gpumem_abi::driver_functions!(functions);

fn functions() -> impl Iterator<Item = (usize, &'static Function)> {
    ALL.iter().enumerate().filter(|(_, function)| matches!(function.module, "submit" | "sync" | "peer"))
}

/// Unknown functions; all but the last say by their names that they give the device work.
const FUTURE: [&str; 4] = ["cuLaunchFuture", "cuMemcpyAsync_v9", "cuFutureThingAsync_ptsz", "cuFutureGetThing"];

/// The driver: its functions tell [`inside`] of each call.
fn source() -> String {
    let mut c = String::from(
        "#include <stdint.h>\n#include <string.h>\nstruct location { int kind, id; };\n\
         struct frame { unsigned long planes[3]; unsigned words[9]; };\n\
         unsigned (*inside)(int, const unsigned long *, int);\n\
         static unsigned long of_location(struct location l) { return (unsigned)l.kind | (unsigned long)(unsigned)l.id << 32; }\n\
         static unsigned long of_frame(struct frame f) { return f.words[8] ^ f.planes[0] ^ f.planes[1] ^ f.planes[2]; }\n",
    );
    for (index, function) in functions() {
        let arguments: Vec<String> = function.types.iter().enumerate().map(|(i, ty)| format!("{ty} a{i}")).collect();
        let words = function.types.iter().enumerate().map(|(i, &ty)| match ty {
            "struct location" => format!("of_location(a{i})"),
            "struct frame" => format!("of_frame(a{i})"),
            // As Rust widens a number with a sign.
            "int" => format!("(unsigned long)(long)a{i}"),
            _ => format!("(unsigned long)a{i}"),
        });
        let (words, len) = (words.collect::<Vec<_>>().join(", "), arguments.len());
        let arguments = if len == 0 { "void".to_owned() } else { arguments.join(", ") };
        let name = function.name;
        writeln!(
            c,
            "unsigned {name}({arguments}) {{ unsigned long w[] = {{{words}{}}}; return inside({index}, w, {len}); }}",
            if len == 0 { "0" } else { "" }
        )
        .unwrap();
    }
    c += "unsigned cuCtxSetCurrent(void *c) { (void)c; return inside(-1, 0, 0); }\n";
    // Of a driver that is newer than any table.
    for name in FUTURE {
        writeln!(c, "int {name}(int a, int b, int c, int d, int e, int f, int g, int h)").unwrap();
        c += "{ return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h; }\n";
    }
    c += "static const struct { const char *base; int since, per_thread; void *f; } table[] = {\n";
    for (_, function) in functions() {
        let Function { name, base, since, per_thread, .. } = function;
        writeln!(c, "{{\"{base}\", {since}, {}, (void *){name}}},", u8::from(*per_thread)).unwrap();
    }
    c += "{\"cuLaunchFuture\", 14000, 0, cuLaunchFuture}, {\"cuMemcpyAsync\", 14000, 0, cuMemcpyAsync_v9},";
    c += "};\nunsigned cuGetProcAddress_v2(const char *base, void **f, int version, uint64_t flags, int *found) {\n\
          int best = -1;\n(void)found;\n\
          for (int i = 0; i < (int)(sizeof table / sizeof *table); i++)\n\
          if (!strcmp(table[i].base, base) && table[i].since <= version && table[i].per_thread == (flags == 2)\n\
          && (best < 0 || table[best].since < table[i].since)) best = i;\n\
          *f = best < 0 ? 0 : table[best].f;\nreturn best < 0 ? 500 : 0;\n}\n";
    c
}

fn driver() -> usize {
    static DRIVER: OnceLock<usize> = OnceLock::new();
    *DRIVER.get_or_init(|| {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [source_file, library] = ["driver.c", "libcuda.so.1"].map(|name| folder.join(name));
        std::fs::write(&source_file, source()).expect("the source");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-O1", "-fexceptions", "-fPIC", "-shared", "-o"]).arg(&library).arg(&source_file);
        assert!(cc.status().expect("a C compiler").success());
        let path = CString::new(library.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: `path` is a CString, and the library has no constructors. Its variable `inside`
        // is a function pointer, which has the size of a usize.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null());
            *libc::dlsym(handle, c"inside".as_ptr()).cast::<usize>() = inside as *const () as usize;
            std::fs::remove_dir_all(&folder).expect("the folder goes");
            handle as usize
        }
    })
}

/// One test at a time: the counts are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    driver();
    let guard = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    ANSWER.store(SUCCESS, SeqCst);
    THROW.store(0, SeqCst);
    QUIET_INSIDE.store(0, SeqCst);
    activity::context_ended();
    guard
}

fn named(name: &str) -> usize {
    let name = CString::new(name).expect("no NUL");
    // SAFETY: `driver` gives an open handle that is never closed, and `name` is a CString.
    unsafe { libc::dlsym(driver() as *mut c_void, name.as_ptr()) as usize }
}

fn quiet() -> u64 {
    activity::submissions_if_none_open().expect("nothing is under way")
}

/// Returns the answer of `cuGetProcAddress`.
fn asked(base: &str, version: u32, flags: u64) -> usize {
    type Get = unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;
    let (base, mut found) = (CString::new(base).expect("no NUL"), std::ptr::null_mut());
    // SAFETY: the address is that of our cuGetProcAddress_v2, which has this type. `base` is a
    // CString, `found` is a local, and the driver's function accepts null for the last.
    unsafe {
        let get = std::mem::transmute::<usize, Get>(named("cuGetProcAddress_v2"));
        let status = get(base.as_ptr(), &mut found, version as c_int, flags, std::ptr::null_mut());
        assert_eq!(status, SUCCESS, "{base:?} {version} {flags}");
    }
    found as usize
}

#[test]
fn each_is_found_by_every_door() {
    let _alone = alone();
    let mut count = 0;
    for (_, function) in functions() {
        let ours = ours(row_named(function.name.as_bytes()).expect("a row"));
        assert_eq!(named(function.name), ours, "{} by dlsym", function.name);
        let found = asked(function.base, function.since, if function.per_thread { 2 } else { 0 });
        assert_eq!(found, ours, "{} by cuGetProcAddress", function.name);
        count += 1;
    }
    assert!(count > 180, "{count} functions");
}

#[test]
fn each_is_passed_on_and_counted() {
    let _alone = alone();
    for (index, function) in functions() {
        let submits = function.module == "submit";
        for answer in [SUCCESS, 1, 600, 700] {
            // What a question about memory was answered is looked at; here it is no memory.
            if function.module == "peer" && answer == SUCCESS && !function.name.starts_with("cuCtx") {
                continue;
            }
            ANSWER.store(answer, SeqCst);
            let before = quiet();
            let (words, status) = (function.call)(named(function.name), u64::from(answer) + index as u64);
            assert_eq!(status, answer, "{}", function.name);
            assert_eq!(*CALLED.lock().unwrap(), (index, words), "{}", function.name);
            assert_eq!(QUIET_INSIDE.load(SeqCst), u32::from(!submits), "{}", function.name);
            assert_eq!(quiet(), before + u64::from(submits), "{}", function.name);
            assert_eq!(
                activity::broken(),
                answer == 700 && function.module != "peer",
                "{} gave {answer}",
                function.name
            );
        }
        activity::context_ended();
        assert!(!activity::broken());
    }
    assert!(is_peer_access_enabled(), "cuCtxEnablePeerAccess was called");
}

#[test]
fn what_is_thrown_is_counted() {
    let _alone = alone();
    THROW.store(1, SeqCst);
    for (index, function) in functions().filter(|(_, function)| function.module == "submit") {
        let before = quiet();
        let thrown = catch_unwind(AssertUnwindSafe(|| (function.call)(named(function.name), 1)));
        let payload = thrown.expect_err("it throws");
        assert_eq!(payload.downcast_ref(), Some(&(index as c_int)));
        assert_eq!(quiet(), before + 1, "{}", function.name);
    }
}

/// A thread that ends inside a call unwinds, with cleanups of C and of Rust.
#[test]
fn a_thread_that_ends_inside_a_call_is_counted() {
    let _alone = alone();
    type Run = extern "C" fn(*mut c_void) -> *mut c_void;
    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut c_void) -> !;
    }
    extern "C-unwind" fn run(_: *mut c_void) -> *mut c_void {
        // SAFETY: pthread_exit unwinds this thread's frames. Only `submit` keeps something there,
        // which unwinding drops.
        activity::submit(|| unsafe { pthread_exit(7 as *mut c_void) })
    }
    let before = quiet();
    // SAFETY: `run` has the type of a thread's function but for the unwinding, which is what is
    // tested. `thread` and `value` are locals, and the thread is joined once.
    unsafe {
        let (mut thread, mut value) = (0, std::ptr::null_mut());
        let run = std::mem::transmute::<extern "C-unwind" fn(*mut c_void) -> *mut c_void, Run>(run);
        assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), run, std::ptr::null_mut()), 0);
        assert_eq!(libc::pthread_join(thread, &mut value), 0);
        assert_eq!(value as usize, 7);
    }
    assert_eq!(quiet(), before + 1);
}

/// A driver call nobody hooks, inside one that is counted: the driver is never in one while all is quiet.
#[test]
fn threads_are_never_seen_quiet_inside() {
    let _alone = alone();
    type Get = unsafe extern "C-unwind" fn(*mut c_void) -> Status;
    let plain = named("cuCtxSetCurrent");
    let (before, inside) = (quiet(), INSIDE.load(SeqCst));
    let threads: u64 = 100;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..500 {
                    // SAFETY: `plain` is the address of a function of this test's driver, which has
                    // this type and takes any value.
                    let call = || unsafe { std::mem::transmute::<usize, Get>(plain)(std::ptr::null_mut()) };
                    assert_eq!(activity::submit(call), SUCCESS);
                }
            });
        }
    });
    assert_eq!(INSIDE.load(SeqCst), inside + threads * 500);
    assert_eq!(QUIET_INSIDE.load(SeqCst), 0);
    assert_eq!(quiet(), before + threads * 500);
}

/// A function that no table has is handed out as a thunk of ours, and ends the counting when it is called:
/// nothing can be told of when it is done. For good, so in a process of its own.
#[test]
fn unknown_ones_end_the_counting_when_called() {
    const CHILD: &str = "GPUMEM_TEST_CHILD";
    let Some(which) = std::env::var(CHILD).ok().and_then(|which| which.parse::<usize>().ok()) else {
        for (which, name) in FUTURE.iter().enumerate().filter(|(_, name)| **name != "cuFutureGetThing") {
            let mut child = Command::new(std::env::current_exe().expect("this program"));
            child.args(["--exact", "unknown_ones_end_the_counting_when_called"]).env(CHILD, which.to_string());
            let done = child.output().expect("it runs");
            assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stdout));
        }
        return;
    };
    let _alone = alone();
    let functions @ [launch, copy, _, plain] = FUTURE.map(named);
    assert_eq!((asked("cuLaunchFuture", 14000, 0), asked("cuMemcpyAsync", 14000, 0)), (launch, copy));
    assert_eq!(asked("cuMemcpyAsync", 13000, 0), ours(row_named(b"cuMemcpyAsync").unwrap()));
    assert!(activity::countable(), "only to know of them is nothing");
    type Sum = extern "C" fn(c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> c_int;
    // SAFETY: both addresses are of the function that this test's driver gives, or of a thunk to
    // it, and it has this type.
    let sum = |at| unsafe { std::mem::transmute::<usize, Sum>(at) }(1, 20, 300, 4000, 50000, 600000, 7000000, 80000000);
    let answer = sum(plain);
    assert!(activity::countable() && activity::submissions_if_none_open().is_some(), "its name says that it only asks");
    assert_eq!(sum(functions[which]), answer);
    assert!(!activity::countable() && activity::submissions_if_none_open().is_none());
}

/// The types of the table whose size is another machine's business are as C has them here.
#[test]
fn the_driver_speaks_of_the_same_types() {
    assert_eq!((size_of::<c_uint>(), size_of::<MemLocation>(), size_of::<EglFrame>()), (4, 8, 64));
}
