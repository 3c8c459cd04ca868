//! Messages about a ROCm that was never compared.

use gpumem_tests::harness::artifacts::repository;
use gpumem_tests::harness::hip::program;
use gpumem_wire::units::NEWEST_ROCM;
use std::fs;

/// A ROCm of a known major version that is newer than the newest whose library was compared is served, and doctor says
/// what it is.
#[test]
fn a_rocm_newer_than_the_newest_compared_is_told() {
    let known = fs::read_to_string(repository().join("shim/abi/src/known_hip.txt")).expect("what was compared");
    let releases = known.lines().filter_map(|line| line.strip_prefix("release ")?.split_once(' '));
    let newest = releases.filter_map(|(version, _)| version.split_once('.')).next_back().expect("a release");
    assert_eq!(newest, (&*NEWEST_ROCM.0.to_string(), &*NEWEST_ROCM.1.to_string()), "the newest of known_hip.txt");
    let told = |version: &str| {
        let ran = program("hip_basic").env("SIM_HIP_VERSION", version).preloaded().ok();
        let report = ran.ledger().gpumem("doctor", &[]);
        let findings = report["findings"].as_array().expect("findings").clone();
        let of_rocm = findings.into_iter().find(|finding| finding["id"] == "rocm").expect("a finding");
        ["severity", "finding"].map(|field| of_rocm[field].as_str().unwrap_or_default().to_owned())
    };
    let said = "ROCm 7.9 was not compared with gpumem's tables; the newest compared is 7.2";
    assert_eq!(told("70900000"), ["info", said]);
    for version in ["50700000", "60400000", "70200000"] {
        assert_eq!(told(version)[0], "ok", "{version}");
    }
}
