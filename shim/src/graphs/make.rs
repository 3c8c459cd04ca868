//! Real execs are made and destroyed.

use super::bounds::to_go;
use super::choose::IdleDevices;
use super::class::Recipe;
use super::class::{Class, Template};
use super::handle::INVALID;
use super::real::{self, Lease, NOWHERE, RealExec};
use super::{Cache, Work};
use crate::gate;
use crate::process::clock;
use crate::process::lock::lock;
use crate::process::raised::Raised;
use crate::records;
use crate::vendor::graphs::SetCount;
use crate::vendor::source::Records;
use gpumem_abi::types::{Graph, GraphExec, OUT_OF_MEMORY, Status};
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, Weak};

impl Cache {
    /// Instantiates one more exec, for which room is reserved.
    pub(super) fn make(&self, class: &Arc<Class>, bytes: (u64, u64), work: &mut Work) -> Result<Lease, Status> {
        self.instantiate(class, bytes, work).inspect_err(|_| self.release(bytes))
    }

    /// The same, without regard to the bounds.
    pub(super) fn make_over_bound(&self, class: &Arc<Class>, work: &mut Work) -> Result<Lease, Status> {
        let bytes = self.estimate(&class.shape);
        self.reserve(bytes, true);
        self.make(class, bytes, work)
    }

    fn instantiate(&self, class: &Arc<Class>, bytes: (u64, u64), work: &mut Work) -> Result<Lease, Status> {
        let (template, _making) = self.template(class, work)?;
        if let Some((exec, content)) = self.exec_of(&template, class, work)? {
            return Ok(self.keep(class, template, exec, content, bytes));
        }
        // The template holds parts of two graphs. Setters of its execs accept its nodes, and that is all it is still
        // good for.
        class.forget_template();
        let template = self.build_template(class, work)?;
        let (exec, content) = self.exec_of(&template, class, work)?.ok_or(INVALID)?;
        Ok(self.keep(class, template, exec, content, bytes))
    }

    /// An exec of a template that holds what the handle means, which is in `work.target`, and the content of that exec.
    /// `None` if the template cannot be made to hold that.
    ///
    /// The nodes of the template itself are set. An exec whose nodes are set before its first upload takes the device a
    /// fifth longer for 1000 short kernels, at every launch, and setting takes four times as long (measured on an H200,
    /// driver 580).
    ///
    /// # Errors
    /// The library's, from instantiate.
    fn exec_of(&self, template: &Template, class: &Class, work: &Work) -> Result<Option<(GraphExec, Records)>, Status> {
        match self.try_exec_of(template, class, work) {
            // What goes back may be waited for: nothing of the template's is locked meanwhile.
            Err(OUT_OF_MEMORY) => self.again(0, || self.try_exec_of(template, class, work)),
            other => other,
        }
    }

    /// The same, once.
    fn try_exec_of(
        &self,
        template: &Template,
        class: &Class,
        work: &Work,
    ) -> Result<Option<(GraphExec, Records)>, Status> {
        let mut content = lock(&template.content);
        if !class.alone {
            let Some(held) = content.as_mut() else { return Ok(None) };
            let set = {
                let _alone = template.alone();
                self.calls.set(None, template.nodes(class), held, &work.target)
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
        let exec = self.exec_from(template, class)?;
        class.took(clock::precise_ns() - start);
        Ok(Some((exec, content.clone().unwrap_or_default())))
    }

    /// Instantiates a template as it is.
    ///
    /// # Errors
    /// The library's.
    pub(super) fn exec_from(&self, template: &Template, class: &Class) -> Result<GraphExec, Status> {
        let _alone = template.alone();
        self.calls.instantiate(template.graph, class.flags)
    }

    /// Adds an exec that was just instantiated. Its room is reserved already.
    pub(crate) fn keep(
        &self,
        class: &Arc<Class>,
        template: Arc<Template>,
        exec: GraphExec,
        content: Records,
        bytes: (u64, u64),
    ) -> Lease {
        let mut lease = self.slot();
        let real = lease.real();
        *lease.body() = real::Body {
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
        gate::record_if_started(|shim| records::handles::real_made(shim, self.vendor, context, bytes));
        lease
    }

    /// A place for a real exec, leased.
    pub(super) fn slot(&self) -> Lease {
        loop {
            let unused = lock(&self.inner).unused.pop();
            let real = unused.unwrap_or_else(|| {
                let real: &'static RealExec = Box::leak(Box::default());
                lock(&self.inner).reals.push(real);
                real
            });
            // A thread may be looking at an unused place for a moment.
            if let Some(lease) = real.lease() {
                return lease;
            }
            lock(&self.inner).unused.push(real);
            std::thread::yield_now();
        }
    }

    /// Destroys a real exec. Pending launches of it go on.
    pub(crate) fn end(&self, lease: Lease, evicted: bool) {
        self.end_in(lease, evicted, false);
    }

    /// Marks an exec that would be destroyed but whose launch may be pending. Instantiating waits for destroyed execs
    /// whose launches are pending, and the shim instantiates at launches, too, which must not wait. So the exec stays
    /// parked and is destroyed once it is seen to have completed. If the class is shared, another handle may use it
    /// before that.
    pub(super) fn mark_to_destroy(&self, lease: &Lease, alone: bool) {
        if alone && !lease.real().to_destroy.swap(true, Relaxed) {
            self.to_destroy.fetch_add(1, Relaxed);
            to_go();
        }
    }

    /// Handles an exec that holds parts of two graphs: no handle gets it any more, and it is destroyed when that needs
    /// no wait.
    pub(super) fn destroy_when_completed(&self, mut lease: Lease) {
        lease.body().broken = true;
        self.mark_to_destroy(&lease, true);
        drop(lease);
        self.destroy_completed();
    }

    /// Destroys what is to be destroyed and has completed by now.
    pub(super) fn destroy_completed(&self) {
        if self.to_destroy.load(Relaxed) == 0 {
            return;
        }
        let mut idle_devices = IdleDevices::default();
        for real in self.reals().into_iter().filter(|real| real.to_destroy.load(Relaxed)) {
            self.in_context_of(real, || {
                if let Some(idle) = self.take_idle(real, &mut idle_devices).filter(|_| real.to_destroy.load(Relaxed)) {
                    self.end_idle(idle, false);
                }
            });
        }
    }

    /// As [`Cache::end`]. If the exec's context is gone already, no call to the library is made.
    ///
    /// Until the library is done with it, the exec is leased and listed in its context. A thread that ends the context
    /// finds it there and waits ([`Cache::context_going`]).
    pub(crate) fn end_in(&self, mut lease: Lease, evicted: bool, gone: bool) {
        let real = lease.real();
        if real.to_destroy.swap(false, Relaxed) {
            self.to_destroy.fetch_sub(1, Relaxed);
        }
        let body = std::mem::take(lease.body());
        // An exec that stays with its handle for good is not counted.
        let counted = real.class.swap(0, Relaxed) != 0;
        if let Some(handle) = real.handle_index().and_then(|index| self.execs.get(index))
            && handle.resident().is_some_and(|its| std::ptr::eq(its, real))
        {
            handle.loses(&lease);
        }
        real.set_handle(None);
        real.stream_key.store(NOWHERE, Relaxed);
        let bytes = real.take_bytes();
        if gone || lease.is_abandoned() {
            // Its events and its template's graph ended with the context.
            body.template.iter().for_each(|template| template.lose_graph());
        } else {
            {
                let _alone = body.template.as_ref().map(|template| template.alone());
                self.calls.destroy_exec(real.exec());
            }
            body.event.into_iter().chain(body.earlier).for_each(|event| self.calls.drop_event(event));
            drop(body.template);
        }
        let context = real.context.load(Relaxed);
        lease.set_unused();
        drop(lease);
        lock(&self.inner).unused.push(real);
        if counted {
            self.release(bytes);
            gate::record_if_started(|shim| records::handles::real_ended(shim, self.vendor, context, bytes, evicted));
        }
    }

    /// The template of a class, to be instantiated: the present one, or one built of what the handle means, which
    /// `work.target` holds. The present one may hold the code of other handles. That code cannot be unloaded before the
    /// answer's guard is dropped. While code is being unloaded, each handle gets a template of its own.
    fn template(&self, class: &Arc<Class>, work: &mut Work) -> Result<(Arc<Template>, Option<Raised<'_>>), Status> {
        if class.alone {
            return Ok((work.clone.clone().ok_or(INVALID)?, None));
        }
        let making = self.begin_making();
        if let Some(template) = class.template().filter(|_| making.is_some()) {
            return Ok((template, making));
        }
        let template = self.build_template(class, work)?;
        if making.is_some() {
            class.set_template(&template);
        }
        Ok((template, making))
    }

    /// A template built of what `work.target` holds.
    pub(super) fn build_template(&self, class: &Class, work: &mut Work) -> Result<Arc<Template>, Status> {
        let base = class.shape.base(&mut work.scratch).ok_or(INVALID)?;
        let shape = class.shape.bytes(&mut work.scratch).ok_or(INVALID)?;
        let (graph, nodes) = self.calls.build(&shape, &work.target, false)?;
        Ok(Arc::new(Template::new(graph, nodes, work.target.clone(), (base, shape), self.calls)))
    }

    /// A template made of the graph that was just read: the graph itself if it is folded, otherwise a clone of it. An
    /// exec of it is what the program would have had, and neither takes as long as building a graph does. The class has
    /// this template for as long as somebody refers to it.
    pub(super) fn read_template(
        &self,
        graph: Graph,
        class: &Class,
        recipe: &Recipe,
        work: &mut Work,
    ) -> Option<Arc<Template>> {
        let (base, shape) = (class.shape.base(&mut work.scratch)?, class.shape.bytes(&mut work.scratch)?);
        let (real, nodes) = match self.folded_out_of(graph, recipe) {
            Some(real) => (real, work.reading.nodes.clone()),
            None => {
                let clone = self.calls.clone_of(self.unfolded(graph)?).ok()?;
                (clone, self.calls.nodes(clone).unwrap_or_default())
            }
        };
        let content = work.reading.records.clone();
        let template = Arc::new(Template::new(real, nodes, content, (base, shape), self.calls));
        // A template without known nodes is of no use and is dropped.
        let making = self.begin_making().filter(|_| template.nodes.len() == class.shape.nodes());
        making.map(|_| {
            class.set_template(&template);
            template
        })
    }

    /// Templates that hold functions of code that is being unloaded are not instantiated any more.
    pub(crate) fn forget_templates(&self, of: impl Fn(&Class, &Records) -> bool) {
        let classes: Vec<_> = lock(&self.known).classes.values().filter_map(Weak::upgrade).collect();
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

    /// While the answer lives, this thread is between reading a class's template and having an exec of it. `None` while
    /// code is being unloaded.
    fn begin_making(&self) -> Option<Raised<'_>> {
        let making = Raised::new(&self.making);
        (self.going.load(SeqCst) == 0).then_some(making)
    }
}
