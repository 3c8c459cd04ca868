//! Programs that give the device work get the answers and the results that they get natively. That each
//! function is counted is tried on a driver made for it: shim/linked/tests/submissions.rs.

use gpumem_tests::harness::client;

#[test]
fn work_of_every_kind_is_passed_on() {
    let submits = client("submits").env("LD_BIND_NOW", "1");
    let (native, preloaded) = (submits.native().ok(), submits.preloaded().ok());
    for line in ["called 1", "wrong 0", "holds 3 16843009 16843009", "closes 0"] {
        assert!(native.out.lines().any(|printed| printed == line), "{line} in {}", native.out);
    }
    assert_eq!((&preloaded.out, preloaded.violations()), (&native.out, native.violations()));
    let disabled = submits.env("GPUMEM_DISABLE", "1").preloaded().ok();
    assert_eq!(disabled.out, native.out);
}

/// The same when the work takes a while and threads look at what is done before it is.
#[test]
fn late_work_is_passed_on() {
    let submits = client("submits").env("SIM_LAG_US", "2000");
    let (native, preloaded) = (submits.native().ok(), submits.preloaded().ok());
    assert_eq!((&preloaded.out, preloaded.violations()), (&native.out, native.violations()));
}
