//! Pairs of ledgers that agree, and pairs that do not.

use super::*;

const MIB: u64 = 1 << 20;

fn export(hash: u8, mib: u64, time_ns: u64, freed: bool) -> Export {
    Export { hash: [hash; 16], bytes: mib * MIB, time_ns, freed, site: "publish a.c:1".into() }
}

fn import(hash: u8, mib: u64, time_ns: u64) -> Import {
    let (hash, site) = (Some([hash; 16]), "attach b.c:2".into());
    Import { hash, bytes: mib * MIB, time_ns, kind: AllocKind::IpcImport, site }
}

fn party(pid: u32, exports: Vec<Export>, imports: Vec<Import>) -> Party {
    Party { pid, name: format!("p{pid}"), exports, imports }
}

/// Rows: freed, MiB, pid.
type Rows<Pid> = Vec<(bool, u64, Pid)>;

/// Returns exports, then imports.
fn pairs(shared: &Shared) -> (Rows<u32>, Rows<Option<u32>>) {
    let exported = shared.exported.iter().map(|row| (row.freed, row.bytes / MIB, row.pid)).collect();
    (exported, shared.imported.iter().map(|row| (row.freed, row.bytes / MIB, row.pid)).collect())
}

#[test]
fn both_sides_of_a_pair_say_the_same() {
    let of = || party(1, vec![export(7, 10, 5, true), export(8, 30, 5, false), export(9, 99, 5, true)], vec![]);
    let to = || party(2, vec![], vec![import(7, 10, 6), import(8, 30, 6), import(77, 4, 6)]);
    let shared = pair(&of(), &[to()]);
    assert_eq!(pairs(&shared), (vec![(true, 10, 2), (false, 30, 2)], vec![]), "what nobody has open is in no row");
    let shared = pair(&to(), &[of()]);
    assert_eq!(pairs(&shared), (vec![], vec![(true, 10, Some(1)), (false, 30, Some(1)), (false, 4, None)]));
    assert!(shared.remarks.is_empty());
}

/// A small block that reuses an address has the handle of the block before.
#[test]
fn a_handle_that_comes_again_is_of_the_export_before_the_open() {
    let twice = || vec![export(7, 1, 10, true), export(7, 1, 30, false)];
    for (opened, freed) in [(20, true), (40, false), (5, true)] {
        let shared = pair(&party(1, twice(), vec![]), &[party(2, vec![], vec![import(7, 1, opened)])]);
        assert_eq!(pairs(&shared).0, [(freed, 1, 2)], "opened at {opened}");
    }
}

#[test]
fn ledgers_that_disagree_are_told_in_a_line_and_are_in_no_pair() {
    let to = || party(2, vec![], vec![import(7, 20, 6)]);
    // Two sizes.
    let of = || party(1, vec![export(7, 10, 5, true)], vec![]);
    for shared in [pair(&of(), &[to()]), pair(&to(), &[of()])] {
        assert_eq!(shared.exported, []);
        assert!(shared.imported.iter().all(|row| row.pid.is_none()));
        assert_eq!(shared.remarks.len(), 1, "{:?}", shared.remarks);
        assert!(
            shared.remarks[0].contains("pid 1 exported 10.0 MiB and pid 2 has 20.0 MiB of it open"),
            "{:?}",
            shared.remarks
        );
    }
    // Two owners.
    let of = |pid| party(pid, vec![export(7, 20, 5, true)], vec![]);
    for shared in [pair(&of(1), &[to(), of(3)]), pair(&to(), &[of(1), of(3)])] {
        assert_eq!((shared.exported.len(), shared.remarks.len()), (0, 1), "{shared:?}");
        assert!(shared.remarks[0].starts_with("pids 1, 3 each say"), "{:?}", shared.remarks);
    }
    // A third process is not involved.
    assert!(pair(&party(4, vec![export(1, 1, 1, false)], vec![]), &[to(), of(1), of(3)]).is_empty());
}

#[test]
fn sizes_that_the_driver_rounds_or_does_not_tell_are_no_disagreement() {
    let of = |bytes| party(1, vec![Export { bytes, ..export(7, 0, 5, true) }], vec![]);
    let to = |bytes| party(2, vec![], vec![Import { bytes, ..import(7, 0, 6) }]);
    for (exported, imported) in [(1000, 2 * MIB), (3 * MIB, 4 * MIB), (3 * MIB, 0), (0, MIB), (u64::MAX, u64::MAX)] {
        let shared = pair(&of(exported), &[to(imported)]);
        assert_eq!((shared.exported.len(), shared.remarks.len()), (1, 0), "{exported} {imported}");
    }
}
