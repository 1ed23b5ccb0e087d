"""Keras's Trainer: a step is traced once, compiled, and replayed; state stays on the device."""

import contextlib
import time
import warnings

import numpy as np
from keras.src import callbacks as callbacks_module
from keras.src import optimizers as optimizers_module
from keras.src import tree
from keras.src.backend import config
from keras.src.callbacks.history import History
from keras.src.callbacks.progbar_logger import ProgbarLogger
from keras.src.losses import loss as loss_module
from keras.src.metrics.metric import Metric
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.utils import traceback_utils
from keras.src.utils.python_utils import is_default

from keras_ocl import runtime
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import dtypes
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.trace import operation
from keras_ocl.distribution import own_rows
from keras_ocl.distribution.step import DistributedStep
from keras_ocl.hooks import checkpoints, distribution, ranks, tensorboard
from keras_ocl.hooks.batches import Batches, check_numbers, check_rows, checked
from keras_ocl.hooks.building import undone_on_error
from keras_ocl.hooks.logs import pythonify_logs
from keras_ocl.ops import core

_STOP = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}  # attributes that callbacks set to end a pass
_PROGRESS_INTERVAL = 0.05  # seconds between progress-bar updates: each one waits for the device


class OclTrainer(base_trainer.Trainer):
    """Trains, evaluates and predicts as Keras's own trainers do.

    With `jit_compile` (the default unless a layer forbids it) a step function is compiled for each signature of
    its data; the batch size is an unknown of the compiled kernels, so a last partial batch builds none.
    `run_eagerly=True` or `jit_compile=False` runs the step operation by operation.
    """

    _ocl_operation = ""  # a model's own operations have their own names in profiles, see layer.py

    def __init__(self):
        super().__init__()
        self.train_function = None
        self.test_function = None
        self.predict_function = None
        self._placement = None, None  # of the functions' steps: (Placement, Communicator of the ranks that give their own rows)

    # ---- one step

    def train_step(self, data):
        """One update from a batch; may be overridden. Returns the logs, a dict from name to tensor."""
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        with GradientTape() as tape:
            y_pred = self(x, training=True) if self._call_has_training_arg else self(x)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            self._track_loss(loss, x)
            if self.optimizer is not None:
                loss = self.optimizer.scale_loss(loss)
        if self.trainable_weights:
            trainable_weights = self.trainable_weights
            gradients = tape.gradient(loss, trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, trainable_weights, strict=True))
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data):
        """Loss and metrics of a batch, as logs; may be overridden."""
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False) if self._call_has_training_arg else self(x)
        loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
        self._track_loss(loss, x)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def predict_step(self, data):
        """The model's output for a batch; may be overridden."""
        x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(data)
        return self(x, training=False) if self._call_has_training_arg else self(x)

    def _track_loss(self, loss, x):
        with operation("Metrics"):
            self._loss_tracker.update_state(loss_module.unscale_loss_for_distribution(loss), sample_weight=_batch_size(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The loss as Keras computes it; profiles show it as one operation."""
        with operation("Loss"):
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The metrics as Keras computes them; profiles show them as one operation."""
        with operation("Metrics"):
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def _get_metrics_result_or_logs(self, logs):
        """The epoch's logs. The last of Keras's own steps has just computed them, so nothing is evaluated again."""
        own, kind = OclTrainer, type(self)
        steps = kind.train_step is own.train_step and kind.test_step is own.test_step
        if logs and steps and kind.compute_metrics is own.compute_metrics and kind.get_metrics_result is own.get_metrics_result:
            return logs
        return super()._get_metrics_result_or_logs(logs)

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Build what is not built yet, from the shapes of a batch. As on TensorFlow, a model without `call` is left to its own step."""
        from keras.src.models.model import Model

        if type(self).call is Model.call:
            return
        adapter = getattr(iterator, "data_adapter", None)
        if getattr(adapter, "enqueuer", None) is not None:
            # Workers that have begun continue from their position: a batch taken from them would be missing in the first epoch.
            iterator = ((0, 0, [adapter._standardize_batch(adapter.py_dataset[0])]) for _ in range(1))
        elif iterator is not None and distribution.own_ranks() is not None:
            iterator = ((begin, end, [batch.data for batch in batches]) for begin, end, batches in iterator)
        with undone_on_error(*self._compiled_parts()):
            super()._symbolic_build(iterator=None if iterator is None else checked(iterator), data_batch=data_batch)

    def _compiled_parts(self):
        """The arguments of `compile` that make variables at the first batch: metrics, and the objects that hold them and the losses."""
        metrics = self._compile_metrics
        given = [] if metrics is None else tree.flatten([metrics._user_metrics, metrics._user_weighted_metrics])
        own = [part for part in (metrics, self._compile_loss) if part is not None]
        return own + [part for part in given if isinstance(part, Metric)]

    # ---- compiled steps

    def _step_function(self, step):
        """`step` as a function of a batch, compiled or eager."""
        name, placement = f"{self.name}.{step.__name__}", distribution.placement()
        own = distribution.own_ranks() is not None
        if self.run_eagerly or not self.jit_compile:
            if own:
                raise NotImplementedError(
                    "auto_shard_dataset=False: steps that run eagerly compute whole batches on every rank; compile them (jit_compile)."
                )
            return _eager(step, name)
        settings = {"dynamic": (0,), "name": name, "context": lambda: self._trace_context}
        return Jitted(step, **settings) if placement is None else DistributedStep(step, placement, own, **settings)

    def _refresh_trace_context(self):
        """Note the state that traces depend on beside their data; called once per call of fit, evaluate or predict."""
        self._trace_context = (tuple(v.trainable for v in self.variables), config.floatx())
        placement, own = distribution.placement(), distribution.own_ranks()
        if (placement, own) != self._placement:  # set or removed since the functions were made
            self._placement = placement, own
            self.train_function = self.test_function = self.predict_function = None
            if placement is not None:
                variables = [*self.variables, *(self.optimizer.variables if getattr(self, "optimizer", None) else ())]
                distribution.check_mesh(variables)
                ranks.agree(variables)

    def make_train_function(self, force=False):
        self._refresh_trace_context()
        if self.train_function is not None and not force:
            return self.train_function
        self.train_function = _last(self._step_function(self.train_step))
        return self.train_function

    def make_test_function(self, force=False):
        self._refresh_trace_context()
        if self.test_function is not None and not force:
            return self.test_function
        self.test_function = _last(self._step_function(self.test_step))
        return self.test_function

    def make_predict_function(self, force=False):
        self._refresh_trace_context()
        if self.predict_function is not None and not force:
            return self.predict_function
        one_step = self._step_function(self.predict_step)

        def predict_function(batches):
            outputs = [one_step(data) for data in batches]
            if len(outputs) == 1:
                return outputs[0]
            return tree.map_structure(lambda *parts: np.concatenate([core.convert_to_numpy(p) for p in parts]), *outputs)

        self.predict_function = predict_function
        return predict_function

    # ---- loops

    def _run_batches(self, phase, epoch_iterator, callbacks, take=None):
        """One pass over the data with the function for `phase` (a key of _STOP), and callbacks around each batch.

        `take` is called with each result; the last result is returned, {} if there is no batch. This is not a generator, because a
        callback's StopIteration would leave one as a RuntimeError.
        """
        result = {}
        begin, end = _batch_hooks(callbacks, phase, epoch_iterator)
        for begin_step, end_step, batches in epoch_iterator:
            if begin is not None:
                begin(begin_step)
            result = getattr(self, f"{phase}_function")(batches)  # looked up each time: a callback may replace it
            if end is not None:
                end(end_step, {"outputs": result} if phase == "predict" else result)
            if take is not None:
                take(result)
            if getattr(self, _STOP[phase]):
                break
        _flush(callbacks)
        return result

    @traceback_utils.filter_traceback
    @tensorboard.ending_with_errors()
    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ):
        self._assert_compile_called("fit")
        self._check_inputs("fit", self.train_step, x, y)
        max_epochs = config.max_epochs()
        if max_epochs and max_epochs < epochs:
            warnings.warn(f"Limiting epochs to {max_epochs}", stacklevel=2)
            epochs = max_epochs
        self._eval_epoch_iterator = None
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        if validation_data is not None:
            validation_data = data_adapter_utils.unpack_x_y_sample_weight(validation_data)
            check_numbers("fit", validation_data=validation_data)
            check_rows("fit", validation_data[0], "the validation data")

        epoch_iterator = Batches(
            "fit",
            x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            steps_per_execution=self.steps_per_execution,
        )
        self._symbolic_build(iterator=epoch_iterator)
        epoch_iterator.reset()
        callbacks = self._callback_list(callbacks, verbose, epochs, epoch_iterator.num_batches, add_history=True)

        self.stop_training = False
        training_logs = {}
        self.make_train_function()
        callbacks.on_train_begin()
        initial_epoch = self._initial_epoch or initial_epoch
        for epoch in range(initial_epoch, epochs):
            self.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            logs = self._run_batches("train", epoch_iterator, callbacks)
            epoch_logs = dict(self._get_metrics_result_or_logs(logs))

            if validation_data is not None and self._should_eval(epoch, validation_freq):
                epoch_logs |= self._validation_logs(*validation_data, validation_batch_size or batch_size, validation_steps, callbacks)

            callbacks.on_epoch_end(epoch, epoch_logs)
            training_logs = epoch_logs
            if self.stop_training:
                break

        if isinstance(self.optimizer, optimizers_module.Optimizer) and epochs > 0:
            self.optimizer.finalize_variable_values(self.trainable_weights)
        if getattr(self, "_eval_epoch_iterator", None) is not None:
            del self._eval_epoch_iterator
        callbacks.on_train_end(logs=training_logs)
        return self.history

    def _validation_logs(self, x, y, sample_weight, batch_size, steps, callbacks):
        """The logs of an evaluation within `fit`, which keeps the iterator over the data from epoch to epoch."""
        if getattr(self, "_eval_epoch_iterator", None) is None:
            self._eval_epoch_iterator = Batches(
                None,
                x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                steps_per_execution=self.steps_per_execution,
                steps_per_epoch=steps,
                shuffle=False,
            )
        logs = self.evaluate(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps=steps,
            callbacks=callbacks,
            return_dict=True,
            _use_cached_eval_dataset=True,
        )
        return {f"val_{name}": value for name, value in logs.items()}

    @traceback_utils.filter_traceback
    def evaluate(
        self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, steps=None, callbacks=None, return_dict=False, **kwargs
    ):
        self._assert_compile_called("evaluate")
        use_cached_eval_dataset = kwargs.pop("_use_cached_eval_dataset", False)
        if kwargs:
            raise ValueError(f"Arguments not recognized: {kwargs}")
        if use_cached_eval_dataset:
            epoch_iterator = self._eval_epoch_iterator
        else:
            self._check_inputs("evaluate", self.test_step, x, y)
            epoch_iterator = Batches(
                "evaluate",
                x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                steps_per_epoch=steps,
                shuffle=False,
                steps_per_execution=self.steps_per_execution,
            )
        self._symbolic_build(iterator=epoch_iterator)
        epoch_iterator.reset()
        callbacks = self._callback_list(callbacks, verbose, 1, epoch_iterator.num_batches)

        self.make_test_function()
        self.stop_evaluating = False
        callbacks.on_test_begin()
        self.reset_metrics()
        logs = self._run_batches("test", epoch_iterator, callbacks)
        logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
        callbacks.on_test_end(logs)
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @traceback_utils.filter_traceback
    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        self._check_inputs("predict", self.predict_step, x)
        epoch_iterator = Batches(
            "predict", x, batch_size=batch_size, steps_per_epoch=steps, shuffle=False, steps_per_execution=self.steps_per_execution
        )
        callbacks = self._callback_list(callbacks, verbose, 1, epoch_iterator.num_batches)

        self.make_predict_function()
        self.stop_predicting = False
        callbacks.on_predict_begin()
        outputs = []
        self._run_batches("predict", epoch_iterator, callbacks, outputs.append)
        callbacks.on_predict_end()
        return tree.map_structure_up_to(outputs[0], lambda *parts: np.concatenate([core.convert_to_numpy(p) for p in parts]), *outputs)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        self._assert_compile_called("train_on_batch")
        self._check_inputs("train_on_batch", self.train_step, x, y)
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Arguments `sample_weight` and `class_weight` cannot be specified at the same time. "
                    f"Received: sample_weight={sample_weight}, class_weight={class_weight}"
                )
            sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
        data = _as_arrays((x, y, sample_weight))
        self._symbolic_build(data_batch=data)
        self.make_train_function()
        self.reset_metrics()
        logs = pythonify_logs(self.train_function([_batch(data)]))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        self._assert_compile_called("test_on_batch")
        self._check_inputs("test_on_batch", self.test_step, x, y)
        data = _as_arrays((x, y, sample_weight))
        self._symbolic_build(data_batch=data)
        self.make_test_function()
        self.reset_metrics()
        logs = pythonify_logs(self.test_function([_batch(data)]))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def predict_on_batch(self, x):
        self._check_inputs("predict_on_batch", self.predict_step, x)
        data = _as_arrays((x,))
        self.make_predict_function()
        return tree.map_structure(core.convert_to_numpy, self.predict_function([_batch(data)]))

    def _check_inputs(self, caller, step, x, y=None):
        """Raise ValueError where there are no inputs; a user's own step may do without them."""
        if x is None and (y is None or getattr(step, "__func__", None) in _OWN_STEPS):
            raise ValueError(f"{caller}: x is None; pass the model's inputs, as arrays, a dataset or a generator.")

    def _callback_list(self, callbacks, verbose, epochs, steps, add_history=False):
        made = isinstance(callbacks, callbacks_module.CallbackList)
        listed = callbacks.callbacks if made else tree.flatten(callbacks or [])
        checkpoints.make_whole(listed, together=distribution.placement() is not None)
        if distribution.process_id() > 0:
            verbose, listed = 0, ranks.without_writers(listed)
        if made:
            callbacks.callbacks = listed
            return callbacks
        return callbacks_module.CallbackList(
            listed, add_history=add_history, add_progbar=verbose != 0, verbose=verbose, epochs=epochs, steps=steps, model=self
        )


_OWN_STEPS = OclTrainer.train_step, OclTrainer.test_step, OclTrainer.predict_step


def _batch_size(x):
    return core.shape(next(i for i in tree.flatten(x) if i is not None))[0]


def _as_arrays(data):
    """A batch like those of the data adapters: arrays and tensors, floats in Keras's float type."""

    def one(v):
        if v is None or core.is_tensor(v):
            return v
        v = np.asarray(v)
        dtypes.check_numbers("a batch", v.dtype)
        if v.dtype.kind == "f" and v.dtype != config.floatx():
            v = v.astype(config.floatx())
        return v

    return tree.map_structure(one, data)


def _batch(data):
    """The argument of a step for this batch; where ranks give their own rows, they agree on it here."""
    ranks = distribution.own_ranks()
    return data if ranks is None else own_rows.agree(ranks, data)


def _last(one_step):
    """The step over a list of batches; it returns the last batch's logs."""

    def function(batches):
        for data in batches:
            logs = one_step(data)
        return logs

    return function


def _eager(step, name):
    def one_step(data):
        profiler = runtime.current_device().profiler
        if profiler is not None:
            profiler.step(name)
        return step(tree.map_structure(lambda v: v if v is None else core.convert_to_tensor(v), data))

    return one_step


def _batch_hooks(callbacks, phase, iterator):
    """(begin, end) to call around a batch; None where no callback listens, since reading logs waits for the device.

    If only the progress bar listens, it is called at intervals, with the newest values.
    """
    names = {"begin": ("on_batch_begin", f"on_{phase}_batch_begin"), "end": ("on_batch_end", f"on_{phase}_batch_end")}
    listening = {
        when: [c for c in callbacks.callbacks if not isinstance(c, History) and not all(is_default(getattr(c, n)) for n in hooks)]
        for when, hooks in names.items()
    }
    begin = getattr(callbacks, f"on_{phase}_batch_begin") if listening["begin"] else None
    end = getattr(callbacks, f"on_{phase}_batch_end")
    bars = [c for c in listening["end"] if isinstance(c, ProgbarLogger)]
    if len(bars) < len(listening["end"]):
        return begin, end
    if not any(c.verbose == 1 for c in bars):
        return begin, None
    return begin, _Throttled(end, iterator.num_batches)


class _Throttled:
    """Calls a batch-end hook at most once per _PROGRESS_INTERVAL seconds, and for the last batch."""

    def __init__(self, hook, steps):
        self.hook, self.last, self.due = hook, None if steps is None else steps - 1, 0.0

    def __call__(self, step, logs):
        now = time.monotonic()
        if now >= self.due or self.last is None or step >= self.last:
            self.hook(step, logs)
            self.due = now + _PROGRESS_INTERVAL


def _flush(callbacks):
    with contextlib.suppress(AttributeError):
        callbacks._flush_futures()
