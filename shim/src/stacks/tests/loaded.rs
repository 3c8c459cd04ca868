//! Walks across loading and unloading of libraries, and the list of loaded objects.

use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::stacks::modules::{self, Modules};

type WithDepth = unsafe extern "C" fn(c_int, Callback, *mut c_void);

#[test]
fn code_loaded_after_the_first_walk_is_known() {
    // SAFETY: `call` takes the probe that comes with it in `with`.
    let _first = Probe::of(|call, with| unsafe { call(with) });
    let library = Library::new("shapes.c", &["-O2", "-Wl,--build-id=0x0123456789abcdef"]);
    // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is open.
    let recurse: WithDepth = unsafe { library.function("recurse") };
    // SAFETY: the library is open, and `call` takes the probe in `with`.
    Probe::of(|call, with| unsafe { recurse(7, call, with) }).assert_same(0);
    // A walk by rules has looked at the list. A walk by frame pointers does not need it.
    let modules = if cfg!(target_arch = "x86_64") { Modules::current() } else { modules::refresh() };
    let module = modules.find(recurse as usize as u64).expect("the library is listed");
    assert_eq!(module.path(), library.path.as_os_str().as_bytes());
    assert_eq!(module.build_id(), [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    assert!(module.bias >= module.start && module.start < module.end);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn another_library_at_the_same_place_is_not_walked_by_old_rules() {
    // The two libraries differ only in the size of frames, so return addresses are equal.
    let small = Library::build("shapes.c", &["-O2", "-fomit-frame-pointer", "-DPAD=1000"]);
    let large = Library::build("shapes.c", &["-O2", "-fomit-frame-pointer", "-DPAD=3000"]);
    let mut places = Vec::new();
    let mut serials = Vec::new();
    for path in [&small, &large, &small, &large] {
        let copy = path.with_extension(format!("{}.so", places.len()));
        std::fs::copy(path, &copy).unwrap();
        let library = Library::open(copy);
        // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library is
        // open.
        let recurse: WithDepth = unsafe { library.function("recurse") };
        let modules = modules::refresh();
        serials.push(modules.find(recurse as usize as u64).unwrap().serial);
        drop(modules);
        // SAFETY: the library is open, and `call` takes the probe in `with`.
        Probe::of(|call, with| unsafe { recurse(9, call, with) }).assert_same(0);
        places.push(recurse as usize);
    }
    let _ = (std::fs::remove_file(small), std::fs::remove_file(large));
    serials.dedup();
    assert_eq!(serials.len(), 4, "each is an object of its own");
}

#[test]
fn unloaded_objects_leave_the_list() {
    let library = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `recurse` this type. Behind the drop of the library only its address
    // is used.
    let recurse: WithDepth = unsafe { library.function("recurse") };
    let loaded = modules::refresh();
    let serial = loaded.find(recurse as usize as u64).unwrap().serial;
    drop(library);
    let after = modules::refresh();
    assert!(after.generation() > loaded.generation());
    assert!(!after.all().iter().any(|module| module.serial == serial));
    // The old list is still whole while it is held.
    assert!(loaded.all().iter().any(|module| module.serial == serial));
}

/// A thread that reads a list while another one forks is not there in the child.
#[test]
fn a_child_unmaps_old_lists_although_its_parent_was_reading_one() {
    let path = Library::build("shapes.c", &["-O2"]);
    let read_by_another_thread = modules::refresh();
    // SAFETY: the child calls the loader, whose locks the C library takes for a fork, and then `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::mem::forget(read_by_another_thread);
        drop(Library::open(path));
        drop(modules::refresh());
        // SAFETY: `_exit` takes a number and follows no pointer. It runs no code of the parent.
        unsafe { libc::_exit(modules::retired() as c_int) };
    }
    let mut status = 0;
    // SAFETY: `status` is a local that outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let _ = std::fs::remove_file(path);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "lists that are never unmapped");
}

#[test]
fn this_program_and_libc_are_listed() {
    let modules = modules::refresh();
    let exe = std::env::current_exe().unwrap();
    let own = modules.find(take as *const () as u64).unwrap();
    assert_eq!(own.path(), exe.as_os_str().as_bytes());
    let libc = modules.find(libc::getpid as *const () as u64).unwrap();
    assert!(libc.path().ends_with(b"libc.so.6") && libc.path()[0] == b'/' && !libc.build_id().is_empty());
    let all = modules.all();
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "sorted, not overlapping");
    let same = modules::refresh();
    assert!(same.all().iter().any(|module| module.serial == own.serial));
}

#[test]
fn threads_walk_while_another_loads_and_unloads() {
    let steady = Library::new("shapes.c", &["-O2"]);
    // SAFETY: shapes.c gives `recurse` this type, and `steady` is open until the end of the test.
    let recurse: WithDepth = unsafe { steady.function("recurse") };
    let passing = Library::build("shapes.c", &["-O2", "-DPAD=500"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut walks = 0;
                while !stop.load(Ordering::Relaxed) || walks == 0 {
                    // SAFETY: `steady` is open until the end of the test, and `call` takes the
                    // probe in `with`.
                    Probe::of(|call, with| unsafe { recurse(20, call, with) }).assert_same(0);
                    modules::refresh().all().iter().for_each(|module| assert!(module.start < module.end));
                    walks += 1;
                }
            });
        }
        for round in 0..60 {
            let copy = passing.with_extension(format!("{round}.so"));
            std::fs::copy(&passing, &copy).unwrap();
            let library = Library::open(copy);
            // SAFETY: shapes.c gives `recurse` this type, and it is called only while the library
            // is open.
            let recurse: WithDepth = unsafe { library.function("recurse") };
            // SAFETY: the library is open, and `call` takes the probe in `with`.
            Probe::of(|call, with| unsafe { recurse(5, call, with) }).assert_same(0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let _ = std::fs::remove_file(passing);
}
