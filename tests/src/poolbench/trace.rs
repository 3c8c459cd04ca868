//! Traces with the columns of RMM's log, `Thread,Time,Action,Pointer,Size,Stream`, as `gpumem` exports them.
//! Replayed in the order of the rows, by one thread, as fast as it goes.

use super::{Plan, Slots, Step};
use std::collections::HashMap;
use std::io::BufRead;

/// The steps of a trace.
///
/// # Errors
/// Says which line is not as it should be.
pub fn parse(rows: impl BufRead) -> Result<Plan, String> {
    let (mut slots, mut plan, mut live) = (Slots::default(), Plan::default(), HashMap::new());
    for (number, line) in rows.lines().enumerate() {
        let line = line.map_err(|error| format!("line {}: {error}", number + 1))?;
        let line = line.trim();
        let header = number == 0 && line.to_ascii_lowercase().starts_with("thread,");
        if line.is_empty() || header || line.starts_with('#') {
            continue;
        }
        let columns: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[_, _, action, pointer, size, ..] = columns.as_slice() else {
            return Err(format!("line {}: {} columns, six are wanted", number + 1, columns.len()));
        };
        match action {
            "allocate" => {
                let bytes = size.parse().map_err(|_| format!("line {}: {size:?} is no size", number + 1))?;
                let slot = slots.take();
                // A pointer that comes again without a free: the trace began late or missed it.
                if let Some(old) = live.insert(pointer.to_ascii_lowercase(), slot) {
                    plan.steps.push(Step::Give { slot: old });
                    slots.give(old);
                    plan.skipped += 1;
                }
                plan.steps.push(Step::Take { slot, bytes });
            }
            "free" => match live.remove(&pointer.to_ascii_lowercase()) {
                Some(slot) => {
                    plan.steps.push(Step::Give { slot });
                    slots.give(slot);
                }
                None => plan.skipped += 1,
            },
            _ => plan.skipped += 1,
        }
    }
    plan.slots = slots.count;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_steps() {
        let text = "Thread,Time,Action,Pointer,Size,Stream\n\
                    1,10:00:00:000001,allocate,0xA00,256,0x0\n\
                    2,10:00:00:000002,allocate,0xb00,1024,0x0\n\
                    1,10:00:00:000003,free,0xa00,256,0x0\n\
                    1,10:00:00:000004,free,0xdead,1,0x0\n\
                    1,10:00:00:000005,allocate failure,0x0,99,0x0\n\
                    1,10:00:00:000006,allocate,0xa00,512,0x0\n";
        let plan = parse(text.as_bytes()).unwrap();
        let (take, give) = (|slot, bytes| Step::Take { slot, bytes }, |slot| Step::Give { slot });
        assert_eq!(plan.steps, [take(0, 256), take(1, 1024), give(0), take(0, 512)]);
        assert_eq!((plan.slots, plan.skipped, plan.peak_requested()), (2, 2, 1536));
    }

    #[test]
    fn what_is_no_trace_is_refused_by_line() {
        assert_eq!(parse("a,b\n".as_bytes()), Err("line 1: 2 columns, six are wanted".into()));
        assert_eq!(parse("1,0,allocate,0x1,many,0\n".as_bytes()), Err("line 1: \"many\" is no size".into()));
    }
}
