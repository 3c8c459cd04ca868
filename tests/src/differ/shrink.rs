//! Makes a program smaller: takes out everything that the difference does not need.

use super::api::Dry;
use super::program::{Line, Op, Program, Step};
use super::work::{Kernel, Work};
use super::world::World;
use crate::tester;

/// The smallest program found for which `fails` still holds. At most `patience` runs are spent.
pub fn shrink(program: &Program, patience: usize, fails: &mut dyn FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut left = patience;
    let mut ask = |candidate: &Program| {
        left = left.saturating_sub(1);
        left > 0 && fails(candidate)
    };
    loop {
        let before = best.clone();
        remove_lines(&mut best, &mut ask);
        let tidy = tidy(&best);
        if tidy != best && ask(&tidy) {
            best = tidy;
        }
        for candidates in [flatter, without_parts, simpler] {
            // Each success changes the list.
            let mut at = 0;
            while let Some(candidate) = candidates(&best).into_iter().nth(at) {
                if ask(&candidate) { best = candidate } else { at += 1 }
            }
        }
        if best == before || !ask(&best) {
            return best;
        }
    }
}

/// Takes out runs of lines, halves first.
fn remove_lines(best: &mut Program, fails: &mut dyn FnMut(&Program) -> bool) {
    let mut size = best.0.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < best.0.len() {
            let mut candidate = best.clone();
            candidate.0.drain(at..(at + size).min(best.0.len()));
            if fails(&candidate) { *best = candidate } else { at += size }
        }
        size /= 2;
    }
}

/// The program without the operations that are left out when it runs.
fn tidy(program: &Program) -> Program {
    let mut world = World::new(Dry);
    tester::Program(program.0.iter().filter(|line| world.run(&line.op)).cloned().collect())
}

/// Programs with one race less. The threads' operations come one after another instead.
fn flatter(program: &Program) -> Vec<Program> {
    let races = program.0.iter().enumerate().filter_map(|(i, line)| match &line.op {
        Op::Race { a, b } => Some((i, a.iter().chain(b).cloned().map(Line::from).collect::<Vec<_>>())),
        _ => None,
    });
    let flat = |(i, ops): (usize, Vec<Line>)| {
        let mut candidate = program.clone();
        candidate.0.splice(i..=i, ops);
        candidate
    };
    races.map(flat).collect()
}

/// Programs with one part of one operation less.
fn without_parts(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    for (i, line) in program.0.iter().enumerate() {
        let mut with = |op: Op| {
            let mut candidate = program.clone();
            candidate.0[i].op = op;
            all.push(candidate);
        };
        match &line.op {
            Op::Graph { g, nodes } => {
                for n in 0..nodes.len() {
                    let mut nodes = nodes.clone();
                    nodes.remove(n);
                    for node in &mut nodes {
                        node.after.retain(|after| *after != n);
                        node.after.iter_mut().filter(|after| **after > n).for_each(|after| *after -= 1);
                    }
                    with(Op::Graph { g: *g, nodes });
                }
            }
            Op::Capture { g, s, mode, body } => {
                for n in 0..body.len() {
                    let mut body = body.clone();
                    body.remove(n);
                    with(Op::Capture { g: *g, s: *s, mode: *mode, body });
                }
            }
            Op::Race { a, b } => {
                for n in 0..a.len() + b.len() {
                    let (mut a, mut b) = (a.clone(), b.clone());
                    if n < a.len() {
                        drop(a.remove(n))
                    } else {
                        drop(b.remove(n - a.len()))
                    }
                    with(Op::Race { a, b });
                }
            }
            _ => {}
        }
    }
    all
}

/// Programs with one operation simplified.
fn simpler(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    for (i, line) in program.0.iter().enumerate() {
        let mut with = |change: &dyn Fn(&mut Op)| {
            let mut candidate = program.clone();
            change(&mut candidate.0[i].op);
            if candidate != *program {
                all.push(candidate);
            }
        };
        let works = works(&mut line.op.clone()).len();
        for n in 0..works {
            let each = |op: &mut Op, change: &dyn Fn(&mut Work)| works_at(op, n, change);
            with(&|op| {
                each(op, &|work| {
                    if let Some(k) = work.kernel_mut() {
                        *k = Kernel { m: k.m, ..Kernel::default() };
                    }
                });
            });
            with(&|op| {
                each(op, &|work| {
                    if let Some(k) = work.kernel_mut() {
                        k.m = 0
                    }
                })
            });
            with(&|op| {
                each(op, &|work| {
                    if let Some(v) = work.value_mut() {
                        *v = (*v).min(2);
                    }
                });
            });
            with(&|op| {
                each(op, &|work| {
                    let buf = work.bufs_mut().into_iter().map(|buf| *buf).find(|buf| buf.is_device());
                    let already = matches!(work, Work::Fill { .. } | Work::Scale { .. } | Work::Empty);
                    if let (Some(b), false) = (buf, already) {
                        *work = Work::Fill { b, v: 1, n: 1, at: 0, k: Kernel::default() };
                    }
                });
            });
        }
        match &line.op {
            Op::Launch { s: 1.., .. } => with(&|op| {
                if let Op::Launch { s, .. } = op {
                    *s = 0
                }
            }),
            Op::Instantiate { .. } => with(&|op| {
                if let Op::Instantiate { how, flags, s, .. } = op {
                    (*how, *flags, *s) = Default::default();
                }
            }),
            Op::Capture { .. } => with(&|op| {
                if let Op::Capture { body, s, .. } = op {
                    for step in body {
                        if let Step::Do { on, .. } = step {
                            *on = *s;
                        }
                    }
                }
            }),
            _ => {}
        }
        if line.t > 0 {
            let mut candidate = program.clone();
            candidate.0[i].t = 0;
            all.push(candidate);
        }
    }
    all
}

fn works_at(op: &mut Op, n: usize, change: &dyn Fn(&mut Work)) {
    if let Some(work) = works(op).into_iter().nth(n) {
        change(work);
    }
}

/// All the work in an operation.
fn works(op: &mut Op) -> Vec<&mut Work> {
    match op {
        Op::Graph { nodes, .. } => nodes.iter_mut().map(|node| &mut node.work).collect(),
        Op::Capture { body, .. } => body
            .iter_mut()
            .flat_map(|step| match step {
                Step::Do { work, .. } => vec![work],
                Step::Other { meanwhile } => works(meanwhile),
                Step::Join { .. } | Step::Launch { .. } => Vec::new(),
            })
            .collect(),
        Op::Add { node, .. } => vec![&mut node.work],
        Op::Set { to, .. } | Op::SetExec { to, .. } => vec![to],
        Op::Do { work, .. } => vec![work],
        Op::Race { a, b } => a.iter_mut().chain(b).flat_map(works).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differ::generate;

    /// A failure needs a few of many operations, and only those stay.
    #[test]
    fn only_what_is_needed_stays() {
        for seed in 0..20 {
            let program = generate::program(seed, 80);
            let launches = |p: &Program| p.0.iter().filter(|line| matches!(line.op, Op::Launch { .. })).count();
            if launches(&program) < 3 {
                continue;
            }
            let small = shrink(&program, 10_000, &mut |p| launches(p) >= 3);
            assert_eq!(small.0.len(), 3, "{small}");
        }
    }
}
