//! Makes real execs.

use super::ExecStore;
use crate::backend::graphs::SetCount;
use crate::backend::source::Records;
use crate::gate;
use crate::graphs::class::{Class, Recipe, Template};
use crate::graphs::handle::INVALID;
use crate::graphs::real::{self, Lease, NOWHERE};
use crate::graphs::sources::Buffers;
use crate::process::clock;
use crate::process::device_calls::DeviceCall;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::records;
use gpumem_abi::types::{Graph, GraphExec, OUT_OF_MEMORY, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

/// Purpose of a new exec: its class, and in `work` its content (`target`) or a clone.
pub(crate) struct WantedExec<'a> {
    pub class: &'a Arc<Class>,
    pub work: &'a mut Buffers,
}

/// An exec of the library, and its content.
type MadeExec = (GraphExec, Records);

impl ExecStore {
    /// Instantiates one more exec, for which room is reserved.
    pub(super) fn make(&'static self, wanted: &mut WantedExec, bytes: (u64, u64)) -> Result<Lease, Status> {
        self.instantiate(wanted, bytes).inspect_err(|_| self.release(bytes))
    }

    /// As [`Self::make`], without regard to the bounds.
    pub(super) fn make_over_bound(&'static self, wanted: &mut WantedExec) -> Result<Lease, Status> {
        let bytes = wanted.class.shape.exec_bytes();
        self.reserve(bytes, true);
        self.make(wanted, bytes)
    }

    fn instantiate(&'static self, wanted: &mut WantedExec, bytes: (u64, u64)) -> Result<Lease, Status> {
        let (template, _making) = self.template(wanted)?;
        if let Some(made) = self.exec_of(&template, wanted)? {
            return Ok(self.keep(wanted.class, template, made, bytes));
        }
        // The template holds parts of two graphs. It only remains useful because setters of its execs accept its nodes.
        wanted.class.forget_template();
        let template = self.build_template(wanted)?;
        let made = self.exec_of(&template, wanted)?.ok_or(INVALID)?;
        Ok(self.keep(wanted.class, template, made, bytes))
    }

    /// Makes an exec of a template with the handle's content, which is in `work.target`. Returns the exec and its
    /// content. `None` if the template cannot be made to hold that content.
    ///
    /// The nodes of the template itself are set. An exec whose nodes are set before its first upload takes the device a
    /// fifth longer for 1000 short kernels, at every launch, and setting takes four times as long (measured on an H200,
    /// driver 580).
    ///
    /// # Errors
    /// The library's status, from instantiate.
    fn exec_of(&'static self, template: &Template, wanted: &WantedExec) -> Result<Option<MadeExec>, Status> {
        match self.try_exec_of(template, wanted) {
            // The memory that goes back may be waited for, so nothing of the template is locked meanwhile.
            Err(OUT_OF_MEMORY) => self.again(0, || self.try_exec_of(template, wanted)),
            other => other,
        }
    }

    /// As [`Self::exec_of`], once.
    fn try_exec_of(&self, template: &Template, wanted: &WantedExec) -> Result<Option<MadeExec>, Status> {
        let WantedExec { class, work } = wanted;
        let mut content = lock(&template.content);
        if !class.alone {
            let Some(held) = content.as_mut() else { return Ok(None) };
            let set = {
                let _alone = template.alone();
                self.library.calls.set(None, template.nodes(class), held, &work.target)
            };
            match set {
                Ok(SetCount { nodes: 0, .. }) => {}
                Ok(_) => held.clone_from(&work.target),
                Err(_) => {
                    *content = None;
                    return Ok(None);
                }
            }
        }
        let start = clock::precise_ns();
        let exec = {
            let (_alone, _call) = (template.alone(), DeviceCall::begin());
            self.library.calls.instantiate(template.graph, class.flags)?
        };
        class.took(clock::precise_ns() - start);
        Ok(Some((exec, content.clone().unwrap_or_default())))
    }

    /// Adds an exec that was just instantiated. Its room is reserved already.
    pub(super) fn keep(&self, class: &Arc<Class>, template: Arc<Template>, made: MadeExec, bytes: (u64, u64)) -> Lease {
        let (exec, content) = made;
        let mut lease = self.execs.take_place();
        let real = lease.real();
        *lease.body() = real::ExecBody {
            class: Some(class.clone()),
            holds: Arc::downgrade(&template),
            template: Some(template),
            content,
            event: lease.body().event.take(),
            ..Default::default()
        };
        real.set_handle(None);
        real.stream_key.store(NOWHERE, Relaxed);
        real.marked.store(false, Relaxed);
        real.degraded.store(false, Relaxed);
        real.waits.store(class.shape.branches, Relaxed);
        real.used_ns.store(clock::now_ns(), Relaxed);
        real.set_bytes(bytes);
        real.class.store(Arc::as_ptr(class) as usize, Relaxed);
        lease.set_exec(exec, class.shape.context);
        let context = class.shape.context;
        gate::record_if_started(|shim| records::handles::real_made(shim, self.library.vendor, context, bytes));
        lease
    }

    /// Returns a class's template to instantiate: the present one, or one built of the handle's content in
    /// `work.target`. The present one may hold the code of other handles. That code cannot be unloaded before the
    /// returned guard is dropped. While code is being unloaded, each handle gets a template of its own.
    fn template(&self, wanted: &mut WantedExec) -> Result<(Arc<Template>, Option<Raised<'_>>), Status> {
        let class = wanted.class;
        if class.alone {
            return Ok((wanted.work.clone.clone().ok_or(INVALID)?, None));
        }
        let making = self.making.begin();
        if let Some(template) = class.template().filter(|_| making.is_some()) {
            return Ok((template, making));
        }
        let template = self.build_template(wanted)?;
        if making.is_some() {
            class.set_template(&template);
        }
        Ok((template, making))
    }

    /// Builds a template of the content in `work.target`.
    fn build_template(&self, wanted: &mut WantedExec) -> Result<Arc<Template>, Status> {
        let WantedExec { class, work } = wanted;
        let base = class.shape.base(&mut work.scratch).ok_or(INVALID)?;
        let shape = class.shape.bytes(&mut work.scratch).ok_or(INVALID)?;
        let (graph, nodes) = self.library.calls.build(&shape, &work.target, false)?;
        Ok(Arc::new(Template::new(graph, nodes, work.target.clone(), (base, shape), self.library.calls)))
    }

    /// Makes a template of the graph that was just read: the graph itself if it is folded, otherwise a clone of it. An
    /// exec of it is the one that the program would have had, and both are faster than building a graph. The class
    /// keeps this template while it is referenced.
    pub(crate) fn read_template(
        &self,
        graph: Graph,
        recipe: &Recipe,
        wanted: &mut WantedExec,
    ) -> Option<Arc<Template>> {
        let WantedExec { class, work } = wanted;
        let (base, shape) = (class.shape.base(&mut work.scratch)?, class.shape.bytes(&mut work.scratch)?);
        let (real, nodes) = match self.sources.folded_out_of(graph, recipe) {
            Some(real) => (real, work.reading.nodes.clone()),
            None => {
                let clone = self.library.calls.clone_of(self.sources.unfolded(graph)?).ok()?;
                (clone, self.library.calls.nodes(clone).unwrap_or_default())
            }
        };
        let content = work.reading.records.clone();
        let template = Arc::new(Template::new(real, nodes, content, (base, shape), self.library.calls));
        // A template without known nodes is of no use and is dropped.
        let making = self.making.begin().filter(|_| template.nodes.len() == class.shape.nodes());
        making.map(|_| {
            class.set_template(&template);
            template
        })
    }
}

/// Forgets templates that hold functions of code that is being unloaded, so that they are not instantiated any more.
pub(super) fn forget_templates(classes: Vec<Arc<Class>>, of: impl Fn(&Class, &Records) -> bool) {
    for class in classes {
        let Some(template) = class.template() else { continue };
        // A template whose content another thread is changing may be given some of these functions.
        let content = template.content.try_lock();
        let goes = content.map_or(true, |content| content.as_ref().is_none_or(|content| of(&class, content)));
        if goes {
            class.forget_template();
        }
    }
}
