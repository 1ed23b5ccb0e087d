"""ONNX for attention: the fused primitive, which stores no matrix of weights, decomposed into primitives with operators."""

from keras_ocl import primitives as P
from keras_ocl.compiler.trace import ir
from keras_ocl.core.trace import Trace, tracing


def _weighted(query, key, value, *extras, scale, is_causal, bias, mask):
    extras = iter(extras)
    bias, mask = (next(extras) if given else None for given in (bias, mask))
    logits, _ = P.attention_logits(query, key, bias, mask, scale, is_causal)

    def over_rows(x):
        return P.broadcast(x, logits.shape, (0, 1, 2))

    weights = P.exp(P.sub(logits, over_rows(P.reduce_max(logits, (3,)))))
    weights = P.convert(P.div(weights, over_rows(P.reduce_sum(weights, (3,)))), query.dtype)
    batch, time, heads, _ = query.shape
    source, key_heads, depth = value.shape[1:]
    weights = P.reshape(weights, (batch, key_heads, heads // key_heads, time, source))
    result = P.dot_general(weights, value, ((4,), (1,)), ((0, 1), (0, 2)))  # (batch, key heads, group, time, depth)
    return P.reshape(P.transpose(result, (0, 3, 1, 2, 4)), (batch, time, heads, depth))


def _attention(g, node):
    trace = Trace()
    operands = [trace.input(x.shape, x.dtype) for x in node.inputs]
    with tracing(trace):
        result = _weighted(*operands, **node.params)
    graph = ir.build(trace.equations, [result])
    outside = {id(t): x for t, x in zip(operands, node.inputs, strict=True)}
    for n in graph.live():
        n.origin = node.origin
        if n.primitive is None:
            g.set(n, g.value(outside[id(n.tensor)]))
        g.write(n)
    return [g.value(graph.outputs[0])]  # the primitive's other results are for its gradient


RULES = {"attention": _attention}

REFUSED = {"attention_gradient": "it belongs to gradients, which are not exported"}
