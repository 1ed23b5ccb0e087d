"""Lowering of loops: the body's graph is lowered once; the executable repeats its kernels.

A step reads its slices of stacked tensors, and writes its slices of stacked results, without copies: pointers in the body's kernels begin
at the present step's slice (kernels.spec.StepSlice), whose number is a kernel argument. A carry, the value that a step hands to the next
one, is overwritten in place where that is safe, lies in its history (the stack of all its values) where one is kept, and else alternates
between two buffers, for which there are two sets of kernel objects, the variants.

Loop-invariant kernels run once, before the loop, unless their results, which have to be kept, take more bytes than they read.

Small kernels of a step are joined into vertical chains (compiler/launch/chain.py).

Steps of a while loop that consist of kernels alone are launched ahead of its condition: every kernel returns at once if the loop has ended.
"""

from dataclasses import replace

from keras_ocl.compiler.launch import lower
from keras_ocl.compiler.launch.chain import chained
from keras_ocl.compiler.launch.loops import persistent
from keras_ocl.compiler.trace import ir
from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, hint, product
from keras_ocl.core.primitive import Kind
from keras_ocl.kernels.launch import fitted
from keras_ocl.kernels.spec import STEP, Arg, Buffer, KernelSpec, StepSlice
from keras_ocl.primitives.loop_steps import hold_p

_KEPT = 2**20  # bytes of a loop-invariant kernel's results that may be kept in any case, however few bytes it reads


class Loop:
    """Launches that are repeated.

    Attributes:
        launches: the launches of one step.
        variants: for each set of kernel objects, a dict from Buffers of the body to Buffers outside.
        held: Buffers (outside) that are live during the whole loop.
        before, after: copies to do before and after the loop, (source, target, bytes, source's offset, target's offset in bytes) between
            Buffers outside.
        length, reverse: of a scan, the number of steps, which may be a Dim, and whether it begins with the last slice.
        condition: of a while loop, for each variant the Buffer with the flag after its step; variant 0's has it before the first step too.
        last: of a while loop, copies to do when the last step was of variant 1.
        guards: for each condition in whose branch the loop is, outermost first, the Buffer (outside) of its bool, and the value of it for
            which the loop runs.
        state: of a while loop of kernels alone, the Buffer (outside) of one int32 that they read: twice the number of steps done, plus 1
            while the loop goes on.
    """

    def __init__(self, name):
        self.name, self.provenance = name, None
        self.held, self.before, self.after, self.last, self.guards = [], [], [], [], []
        self.length, self.reverse, self.condition, self.state = None, False, None, None

    def resolver(self, variant, outside):
        """The function from the body's Buffers to those of the executable; `outside` is the same function for the graph around."""
        mapping, shared = self.variants[variant], self.shared

        def resolve(buffer):
            buffer = shared.get(buffer, buffer)
            return outside(mapping[buffer]) if buffer in mapping else buffer

        return resolve


def lower_loop(builder, node, projections):
    """The launches of a scan or while node, the Loop last; `projections`: dict from the number of a result to its PROJECTION node."""
    lowering = _Lowering(builder, node, projections)
    found = lowering.rows() if node.kind is Kind.SCAN and persistent.allowed(builder.traits) and not builder.all_arguments else None
    if found and lowering.hold(*found):
        return [*lowering.first, lowering.loop]
    if found:  # a _Lowering can lower its graph only once
        lowering = _Lowering(builder, node, projections)
    lowering.launch()
    return [*lowering.first, lowering.loop]


class _Lowering:
    """A loop's body with its inputs and outputs placed in memory; `hold` or `launch` lowers it, into `first` (run before) and `loop`."""

    def __init__(self, builder, node, projections):
        self.builder = builder
        self.node, self.projections = node, projections
        p = node.params
        self.body, self.consts = p["body"], p["consts"]
        self.is_scan = node.kind is Kind.SCAN
        self.carries = p["carries"] if self.is_scan else len(self.body.outputs)
        self.results = [
            projections[k].buffer if k in projections else Buffer(product(shape), dtype) for k, (shape, dtype) in enumerate(node.results)
        ]
        self.histories = {k: self.results[len(self.body.outputs) + j] for j, k in enumerate(p.get("histories", ()))}
        self.reverse = p.get("reverse", False)
        self.graph = ir.build(self.body.equations, self.body.outputs)
        self.inputs = {id(n.tensor): n for n in self.graph.nodes if n.primitive is None}
        self._holds = 0
        self.extra = {}  # node -> further Buffers where it is stored
        self.loop = Loop(f"{node.origin.layer}: {node.name}" if node.origin.layer else node.name)
        self.loop.reverse = self.reverse
        self._place_inputs()
        self._separate_hosts()
        self._place_outputs()

    def rows(self):
        """(the batch's extent, the set of nodes that fall into rows) of independent rows (persistent.batch_of); else None."""
        carried = [n for k in range(self.carries) if (n := self._input(self.consts + k)) is not None]
        return persistent.batch_of(self.graph.live(), carried, self.graph.outputs)

    def hold(self, batch, rows):
        """Makes all steps one launch, a persistent kernel, given what rows() found; returns whether that is possible and pays."""
        traits = persistent.of_rows(rows, self.builder.traits)
        self._lower(traits)
        spec = persistent.kernel(self.loop, batch, persistent.stored(rows, self.extra, self.loop.shared), traits)
        if spec is None or any(launch.group is not None for launch in self.first):
            return False
        self.first = [fitted(launch, self.builder.traits) for launch in self.first]
        persistent.into(self.loop, spec)
        return True

    def launch(self):
        """Makes each step launches of its own."""
        self._lower(self.builder.traits)
        loop = self.loop
        if not self.is_scan and loop.launches and all(isinstance(launch, KernelSpec) for launch in loop.launches):
            self._predicate()
        loop.launches = chained(loop.launches, self.builder.traits)

    def _lower(self, traits):
        updates = [(self._input(self.consts + k), k) for k in self._plain() if self._input(self.consts + k) is not None]
        lowered = lower.lower_graph(self.graph, updates, traits, self.builder.all_arguments, lower_loop, self.extra)
        self.loop.launches, self.loop.shared = lowered.launches, lowered.shared
        self._bind(lowered.overwritten)
        self.first = self._invariant()

    def _input(self, k):
        """The node of the body's input number k; None where it is not read."""
        return self.inputs.get(id(self.body.inputs[k]))

    def _plain(self):
        return [k for k in range(self.carries) if k not in self.histories]

    # ---- places

    def _place_inputs(self):
        for n in self.graph.nodes:
            if n.kind is Kind.STEP_SLICE:
                n.buffer.slice = StepSlice(n.inputs[0].buffer, product(n.shape), n.params["shift"])
        for k, history in self.histories.items():
            n = self._input(self.consts + k)
            if n is not None:
                n.buffer.slice = StepSlice(history, product(n.shape), 1 if self.reverse else 0)

    def _hold(self, n, before=None):
        """A new node: a copy of `n` in a buffer of its own, placed before the node `before` if that is given."""
        self._holds += 1
        held = self.graph.add(hold_p, (n,), {"number": self._holds}, n.origin)
        if before is not None:
            held.order = before.order - 0.5  # the graph lists nodes by their order
        return held

    def _separate_hosts(self):
        """Copies operands of inner loops, conditions and host operations that are slices of a stack, because these read whole buffers."""
        self.whole = set()
        for n in list(self.graph.live()):
            if n.primitive is None or not (n.primitive.loops or n.kind is Kind.COND or n.primitive.host is not None):
                continue
            inputs = []
            for i in n.inputs:
                base = i
                while base.kind is Kind.VIEW and base.primitive.flat:
                    self.whole.add(base)
                    base = base.inputs[0]
                self.whole.add(base)
                inputs.append(self._hold(i, n) if base.buffer.slice is not None else i)
            n.inputs = tuple(inputs)

    def _place_outputs(self):
        outputs, taken = list(self.graph.outputs), set()
        readers = self.graph.readers()
        for k, n in enumerate(outputs):
            n = outputs[k] = ir.stored(n, readers)
            carried = k < self.carries
            part = None
            if carried and k in self.histories:
                part = StepSlice(self.histories[k], product(n.shape), 0 if self.reverse else 1)
            elif not carried:
                part = StepSlice(self.results[k], product(n.shape))
            foreign = n.kind in (Kind.INPUT, Kind.STEP_SLICE)
            only_whole = n.kind is Kind.PROJECTION or n.primitive is not None and n.primitive.host is not None
            whole = part is not None and not foreign and only_whole
            if foreign or whole or (carried and n in taken):
                n = outputs[k] = self._hold(n)
            if part is not None and n.buffer.slice is None and n not in taken and n not in self.whole:
                n.buffer.slice = part
            elif part is not None:
                self.extra.setdefault(n, []).append(Buffer(part.elements, n.dtype, part))
            taken.add(n)
        self.graph.outputs = outputs

    # ---- buffers

    def _bind(self, overwritten):
        node, loop, consts = self.node, self.loop, self.consts
        steps = node.params["length"] if self.is_scan else None
        common = {}
        for k, tensor in enumerate(self.body.inputs):
            if k < consts or k >= consts + self.carries:
                if id(tensor) in self.inputs:
                    common[self.inputs[id(tensor)].buffer] = node.inputs[k].buffer
                    loop.held.append(node.inputs[k].buffer)
        for k in range(self.carries, len(self.body.outputs)):
            common[self.results[k]] = self.results[k]
            loop.held.append(self.results[k])
        variants = [common, dict(common)]
        alternating = False
        flags = []
        for k in range(self.carries):
            first, result, new = node.inputs[consts + k].buffer, self.results[k], self.graph.outputs[k].buffer
            shape, dtype = node.results[k]
            nbytes = product(shape) * dtypes.itemsize(dtype)
            loop.held.append(first)
            if k in self.histories:
                history = self.histories[k]
                for variant in variants:
                    variant[history] = history
                start, end = (steps, 0) if self.reverse else (0, steps)
                loop.held.append(history)
                loop.before.append((first, history, nbytes, 0, start * nbytes))
                if k in self.projections:
                    loop.after.append((history, result, nbytes, end * nbytes, 0))
                    loop.held.append(result)
                if new.slice is None:
                    for variant in variants:
                        variant[new] = new
                continue
            entry = self._input(consts + k)
            loop.held.append(result)
            if entry is None or entry in overwritten:
                places = (result, result)
            else:
                spare = Buffer(product(shape), dtype)
                places = (result, spare)
                loop.held.append(spare)
                alternating = True
            for v, variant in enumerate(variants):
                variant[new] = places[v]
                if entry is not None:
                    variant[entry.buffer] = places[1 - v]
            if isinstance(steps, Dim) and places[0] is not places[1]:  # the first step may begin with either
                loop.before += [(first, place, nbytes, 0, 0) for place in places]
            elif self.is_scan:
                loop.before.append((first, places[0 if isinstance(steps, Dim) else steps % 2], nbytes, 0, 0))
            else:
                loop.before.append((first, result, nbytes, 0, 0))
                if places[0] is not places[1]:
                    loop.last.append((places[1], result, nbytes, 0, 0))
            flags.append(places)
        loop.length = steps
        loop.variants = variants if alternating and steps != 1 else variants[:1]
        if not self.is_scan:
            loop.condition = flags[0]

    def _invariant(self):
        """Takes the loop-invariant kernels out of the loop, and returns them."""
        loop, (outside, *_) = self.loop, self.loop.variants
        constant = {n.buffer: outside[n.buffer] for k in range(self.consts) if (n := self._input(k)) is not None}
        fixed = {n.buffer for n in self.graph.outputs} | {b for buffers in self.extra.values() for b in buffers} | set(outside)

        def resolved(launch, kind):
            return [loop.shared.get(a.value, a.value) for a in launch.args if a.kind == kind]

        def nbytes(buffers):
            return sum(hint(b.elements) * dtypes.itemsize(b.dtype) for b in set(buffers))

        kernels = [launch for launch in loop.launches if isinstance(launch, KernelSpec) and all(a.value is not STEP for a in launch.args)]
        found = [k for k in kernels if nbytes(resolved(k, "out")) <= max(_KEPT, nbytes(resolved(k, "in")))]
        writers = {}
        for launch in loop.launches:
            for b in resolved(launch, "out") if isinstance(launch, KernelSpec) else ():
                writers.setdefault(b, []).append(launch)
        changed = True
        while changed:
            chosen = set(map(id, found))

            def made(b, chosen=chosen):
                return b in writers and b not in fixed and all(id(w) in chosen for w in writers[b])

            stay = [k for k in found if all(b in constant or made(b) for b in resolved(k, "in")) and all(map(made, resolved(k, "out")))]
            changed, found = len(stay) < len(found), stay
        chosen = set(map(id, found))
        loop.launches = [launch for launch in loop.launches if id(launch) not in chosen]
        loop.held += [b for launch in found for b in resolved(launch, "out")]

        def outside_of(a):
            b = loop.shared.get(a.value, a.value)
            return replace(a, value=constant.get(b, b)) if a.is_pointer else a

        return [replace(launch, args=tuple(map(outside_of, launch.args))) for launch in found]

    def _predicate(self):
        """Lets steps be launched ahead of the condition: kernels return if the loop has ended; a last one of each step evaluates it."""
        loop, again = self.loop, self.graph.outputs[0].buffer
        state = loop.state = Buffer(1, "int32")
        loop.held.append(state)
        launches = []
        for launch in loop.launches:
            name = f"p{sum(a.is_pointer for a in launch.args)}"
            args = (*launch.args, Arg(name, "in", "int32", state))
            launches.append(replace(launch, args=args, guards=(f"!({name}[0] & 1)", *launch.guards)))
        args = (Arg("p0", "out", "int32", state), Arg("p1", "in", "bool", again), Arg("n0", "int", value=STEP))
        body = "if (p0[0] & 1) p0[0] = 2 * (n0 + 1) + (p1[0] != 0);\n"
        provenance = launches[-1].provenance
        loop.launches = [*launches, KernelSpec("condition", args, body, (1,), title="a loop's state after a step", provenance=provenance)]
