//! Allocations that do not go through the runtime: they are whose they would be.

use gpumem_tests::harness::client;
use gpumem_tests::harness::run::Ran;

fn lines(ran: &Ran) -> Vec<&str> {
    ran.out.lines().filter(|line| !line.starts_with('{')).collect()
}

fn runtime_was_asked(ran: &Ran) -> u64 {
    let said = ran.err.lines().find_map(|line| line.strip_prefix("runtime asked ")?.strip_suffix(" times"));
    said.and_then(|times| times.parse().ok()).unwrap_or_else(|| panic!("{}", ran.err))
}

#[test]
fn memory_is_the_chosen_devices_whether_or_not_the_runtime_is_asked() {
    for devices in ["1", "3"] {
        let program = client("runtime").env("SIM_DEVICES", devices);
        let native = program.native().ok();
        assert!(runtime_was_asked(&native) >= 100, "a runtime that says nothing shows nothing: {}", native.err);
        for (name, value) in [("GPUMEM_STACKS", "0"), ("GPUMEM_STACKS", "32"), ("GPUMEM_FREE", "deferred")] {
            let ran = program.clone().env(name, value).preloaded().ok();
            assert_eq!(lines(&ran), lines(&native), "{name}={value}");
            assert_eq!(ran.violations(), native.violations(), "{name}={value}");
            assert_eq!(runtime_was_asked(&ran), 0, "{name}={value}");
            ran.ledger().agrees_with(&ran.json()).complete().balanced();
        }
        let without = program.clone().env("GPUMEM_POOL", "0").preloaded().ok();
        assert_eq!(lines(&without), lines(&native));
        assert!(runtime_was_asked(&without) >= 100);
    }
}
