"""What a study is: rows (a network on data), what is measured of each, and the tables, charts and criteria that show it.

A study is a module of comparisons/studies that defines `STUDY`. Its networks are functions of comparisons/models, its data come from
comparisons/data. Everything here is data; comparisons.study_runner runs it and comparisons.study_report shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Extent:
    """How much of a row is run.

    epochs: of each training. repeats: trainings, each from weights of its own. examples, test_examples: at most so many (None: all).
    evaluated: whether the test data are evaluated after each training. steps: how many losses of single steps are recorded, where a row
    measures them; step_repeats: from so many starts (None: as many as trainings).
    """

    epochs: int = 1
    repeats: int = 3
    examples: int | None = None
    test_examples: int | None = None
    evaluated: bool = True
    steps: int = 10
    step_repeats: int | None = None


@dataclass(frozen=True)
class Row:
    """One network on one set of data, run on each backend in a fresh process.

    Attributes:
        name: unique in the study.
        table: the name of the Table that shows it.
        model: "module:function" of comparisons/models; the function takes the shape of one example, without the batch, and `options`, and
            returns a compiled keras.Model with metrics among "accuracy", "mae", ... as it likes.
        options: keyword arguments of the model's function.
        data: "module:function" of comparisons/data, a loader; data_options: its keyword arguments.
        batch: examples in a step.
        quick, full: the row's extents under --quick and --full (the document's own).
        measures: what is measured, in this order, as "module:function" of comparisons (see comparisons.measures); each function takes a
            Context and returns a dict that is merged into the row's result.
        document: the source document's own figures of this row, by a short name with its unit, such as {"OpenCL CPU s": 66.3}.
        note: what a reader must know, such as that a parameter was inferred.
        only: the backends that can run it; None for all.
        environment: variables that its process gets; {"ocl": {...}} by backend. A KERAS_OCL_DEVICE such as "/units=1" is a part of the
            device that the study runs on.
        parameters: the number of trainable and other weights that the document gives, None where it gives none.
        callbacks: what training needs besides, such as schedules: ("module:function" of comparisons/models, its keyword arguments) each.
        settings: anything a study's own measures want to know (JSON values).
    """

    name: str
    table: str
    model: str
    data: str
    batch: int
    quick: Extent
    full: Extent
    options: dict = field(default_factory=dict)
    data_options: dict = field(default_factory=dict)
    measures: tuple = ("measures:train", "measures:predict")
    document: dict = field(default_factory=dict)
    note: str = ""
    only: tuple | None = None
    environment: dict = field(default_factory=dict)
    parameters: int | None = None
    callbacks: tuple = ()
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    value: from a result (see comparisons.study_runner for its keys) to a number, text or None; a spread (see comparisons.measures) gives
    the median, with its quartiles in small print. digits: behind the point. unit: for the head. compares: whether `value` also takes the
    reference backend's result of the same row (None where it has none).
    """

    head: str
    value: Callable
    digits: int = 3
    unit: str = ""
    percent: bool = False
    compares: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of one kind. `columns` are shown for each backend, beside those that every table has: row, backend, the document's figures.

    head: what a row is called.
    """

    name: str
    title: str
    columns: tuple
    note: str = ""
    head: str = "row"


@dataclass(frozen=True)
class Chart:
    """A PNG. kind: "bars" (a group of bars a row, a bar a backend), "lines" (a line a series and backend) or "curves" (of one row).

    table: the table whose rows it shows, or one row's name; value: from a result to the height (a spread gets error bars), or of curves to
    {what is along the axis: [curve, ...]}, a curve being a list of numbers; x: from a Row to the place along the axis (lines only);
    series: from a Row to the line's name (lines only; "" for one line).
    """

    name: str
    title: str
    table: str
    value: Callable
    ylabel: str
    kind: str = "bars"
    x: Callable | None = None
    xlabel: str = ""
    series: Callable | None = None
    logx: bool = False
    logy: bool = False


@dataclass(frozen=True)
class Study:
    """A source document's experiments, or comparisons of our own.

    source: the document in a line, "" for none. notes: what was inferred, and which of its figures are wrong. criteria: functions
    (results, reference) -> list of verdicts, see comparisons.criteria; `results` are the dicts of all rows and backends, failed ones
    too. extra: functions results -> list of (title, head, rows) for tables that no Table can express.
    """

    name: str
    title: str
    source: str
    rows: tuple
    tables: tuple
    charts: tuple = ()
    notes: tuple = ()
    criteria: tuple = ()
    extra: tuple = ()

    def row(self, name):
        """Return the row called `name`; raises ValueError where there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(f"the study {self.name} has no row {name!r}")
