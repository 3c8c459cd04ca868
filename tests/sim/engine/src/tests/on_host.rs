//! The sources of the kernels in `kernels/`, compiled for the host, find what the simulator's versions of them find: bit for
//! bit, so that no change of one can be forgotten in the other.

use crate::kernels;
use crate::node::Kernel;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;

type RunScan = unsafe extern "C" fn(*const [u64; 2], u64, *mut u64, *const u32, u32, *const u64, u32);
type RunGuard = unsafe extern "C" fn(*const u8, u64, u64, u64, u32, *mut [u64; 3]);

/// Words of a tile, and of a piece at most, as kernels/scan.cu and the shim have them.
const TILE: usize = 8192;
const PIECE: usize = 16 * TILE;
const TABLE: usize = 16384 / 64;
const ROOM: usize = 61439;
/// An address as devices have them.
const LOW: u64 = 0x7f12_3400_0000;

/// The kernels in a library: made anew, loaded and never unloaded.
fn compiled(symbol: &str) -> *mut c_void {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (kernels, source) = (here.join("../../../kernels"), here.join("src/tests/on_host.cpp"));
    let library = std::env::temp_dir().join(format!("gpumem-on-host-{}-{symbol}.so", std::process::id()));
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let done = Command::new(compiler)
        .args(["-std=gnu++17", "-O1", "-w", "-shared", "-fPIC", "-pthread", "-I"])
        .arg(&kernels)
        .arg(source)
        .arg("-o")
        .arg(&library)
        .output()
        .expect("a compiler for C++ is there");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let path = CString::new(library.to_str().expect("a path")).expect("a path");
    let name = CString::new(symbol).expect("a name");
    // SAFETY: both are texts with their NUL. The library is this test's own; nothing runs when it is loaded.
    let found = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    std::fs::remove_file(&library).expect("what was made");
    assert!(!found.is_null(), "{symbol}");
    found
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

fn kernel(params: Vec<u8>) -> Kernel {
    Kernel {
        func: 0,
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        params: params.into(),
        layout: Vec::new().into(),
        packed: false,
        attrs: Default::default(),
        load: 0,
    }
}

fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns words such as `wanted` and memory may have: addresses, numbers just beside them, and anything.
fn words(random: &mut Random, low: u64, span: u64, count: usize) -> Vec<u64> {
    let word = |random: &mut Random| match random.below(16) {
        0 => low.wrapping_add(random.below(span)),
        1 => low.wrapping_add(span - 1 + random.below(3)),
        2 => low.wrapping_sub(random.below(3)),
        3 => low.wrapping_add(random.below(64) << 21),
        4 => (low >> 32 << 32) | random.below(1 << 32),
        5 => 0,
        _ => random.next(),
    };
    (0..count).map(|_| word(random)).collect()
}

/// Answers with so much room: sorted, since the order in which they are found is nobody's.
fn answered(room: usize, run: impl FnOnce(*mut u64)) -> (u64, Vec<[u64; 2]>) {
    let mut answers = vec![0_u64; 2 + 2 * ROOM];
    answers[1] = room as u64;
    run(answers.as_mut_ptr());
    let kept = room.min(answers[0] as usize);
    assert!(answers[2 + 2 * kept..].iter().all(|&word| word == 0), "no more than there is room for");
    let mut found = answers[2..2 + 2 * kept].as_chunks::<2>().0.to_vec();
    found.sort_unstable();
    (answers[0], found)
}

#[test]
fn the_scan_finds_what_its_source_finds() {
    // SAFETY: the function of this name has this signature (on_host.cpp).
    let run: RunScan = unsafe { std::mem::transmute(compiled("run_scan")) };
    let native = kernels::native("gpumem_scan").expect("a version on the host");
    let mut random = Random(7);
    let mut launch = 0;
    for (low, span) in [(LOW, 200 << 20), (0x7f12_ffe0_0000, 3 << 32), (0x200, 1), (u64::MAX, 0)] {
        let lengths = [0, 1, 2, 3, 513, TILE - 1, TILE, TILE + 1, 2 * TILE + 5, 5 * TILE + 2, PIECE];
        // Vectors, so that all begin at a multiple of 16 bytes.
        let memory: Vec<Vec<u128>> = lengths
            .iter()
            .map(|&length| words(&mut random, low, span.max(1), length + length % 2))
            .map(|words| words.as_chunks::<2>().0.iter().map(|&[a, b]| u128::from(a) | u128::from(b) << 64).collect())
            .collect();
        let ranges: Vec<[u64; 2]> =
            memory.iter().zip(lengths).map(|(words, length)| [words.as_ptr() as u64, length as u64]).collect();
        let mut wanted = vec![low, span];
        wanted.extend((0..TABLE).map(|_| random.next() & random.next()));
        for (room, cancel) in [(ROOM, 0_u32), (10, 0), (ROOM, 1)] {
            launch += 1;
            let of_source = answered(room, |answers| {
                let tiles = (PIECE / TILE) as u32;
                // SAFETY: the list and what it lists, the answers with so much room, the word and the table are there.
                unsafe { run(ranges.as_ptr(), ranges.len() as u64, answers, &cancel, launch, wanted.as_ptr(), tiles) };
            });
            let of_simulator = answered(room, |answers| {
                let (list, word) = (ranges.as_ptr() as u64, std::ptr::from_ref(&cancel) as u64);
                let head = [list, ranges.len() as u64, answers as u64, word, launch.into()];
                native(&kernel([bytes(&head), bytes(&wanted)].concat()), |address| address);
            });
            assert_eq!(of_source.0, of_simulator.0, "{low:#x} {room} {cancel}");
            assert!(cancel == 0 || of_source.0 == 0, "it ends for that");
            if room == ROOM {
                assert!(of_source.1 == of_simulator.1, "{low:#x}: other words, or at other places");
            }
            let is_plain = low == LOW && cancel == 0;
            assert!(!is_plain || of_source.0 > 1000, "only {} of them pass", of_source.0);
        }
    }
}

#[test]
fn the_guard_finds_what_its_source_finds() {
    // SAFETY: the function of this name has this signature (on_host.cpp).
    let run: RunGuard = unsafe { std::mem::transmute(compiled("run_guard")) };
    let native = kernels::native("gpumem_guard_verify").expect("a version on the host");
    let mut random = Random(11);
    for (length, chunk) in
        [(1, 16), (15, 64), (512, 512), (4096, 1 << 16), (20_000, 4096), (70_003, 16_384), (300_000, 1 << 16)]
    {
        for wrong in [0, 1, 2, 50] {
            let (value, from) = (random.next() as u8, random.below(17));
            let mut memory = vec![value; length as usize + 32];
            for _ in 0..wrong {
                memory[(from + random.below(length)) as usize] = random.next() as u8;
            }
            // What lies beside the range says nothing.
            (memory[..from as usize]).fill(!value);
            memory[(from + length) as usize..].fill(!value);
            let (at, chunks) = (memory[from as usize..].as_ptr(), length.div_ceil(chunk));
            let mut found = [vec![[1_u64; 3]; chunks as usize], vec![[2_u64; 3]; chunks as usize]];
            let [of_source, of_simulator] = &mut found;
            // SAFETY: the range is there, and an answer for each chunk.
            unsafe { run(at, length, chunk, chunks, value.into(), of_source.as_mut_ptr()) };
            let params = [at as u64, length, chunk, value.into(), of_simulator.as_mut_ptr() as u64];
            native(&kernel(bytes(&params)), |address| address);
            assert_eq!(of_source, of_simulator, "{length} bytes in chunks of {chunk}, {wrong} of them wrong");
        }
    }
}
