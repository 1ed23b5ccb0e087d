"""Solar irradiance at the sensors of a dense network, to be forecast ten seconds ahead at one of them.

--data names a folder with solar*.csv: files of the network on Oahu (NREL's Measurement and Instrumentation Data Center), or of any other,
as CSV with a header line. The first column is the local time, "2010-07-31 07:30:00", one row per second; each other column is a sensor,
named in the header, in W/m², "nan" where it is missing. `rows` takes any sensors; `maps` needs their places: those of SENSORS, by name,
or a file places.csv in the folder with the columns name, east and north (metres).

Without such files the days are synthetic: a clear-sky curve (Haurwitz 1945) times two layers of clouds, frozen fields of noise that the
wind carries over the sensors (Taylor 1938). The sources do not give the sensors' coordinates, so SENSORS is a grid of the network's size,
4x4 sensors 300 m apart with the forecast one in the middle.

What the networks get is in kW/m².
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from comparisons.data import Data
from comparisons.data.lazy import Lazy

TARGET = "dh10"
_AROUND = ("dh1", "dh2", "dh3", "dh4", "dh5", "dh6", "dh7", "dh8", "dh9", "dh11", "ap1", "ap3", "ap4", "ap5", "ap6", "ap7")
SPACING = 300.0  # metres
SENSORS = {name: ((k % 4 - 1.5) * SPACING, (k // 4 - 1.5) * SPACING) for k, name in enumerate(_AROUND)} | {TARGET: (0.0, 0.0)}

GRANULARITY = HORIZON = 10  # seconds
FEATURES, SIDE = 50, 50
LATITUDE = 21.31  # degrees
FIRST_DAY = np.datetime64("2010-03-18")
DAY = 24 * 3600  # seconds
BLOCK = 8  # days whose examples are shuffled together
FIELD, CELL = 1024, 10.0  # extent of a cloud field in cells, metres of a cell
PATTERN = "solar*.csv"
NOTICE = (
    f"the irradiance is synthetic (clear-sky curve times moving clouds): times are valid, errors are not the document's; "
    f"give --data a folder with {PATTERN}"
)


@dataclass(frozen=True)
class Readings:
    """What the sensors read: times, int64 (instants,) seconds since 1970 in local time; values, float32 (instants, sensors) W/m²."""

    times: np.ndarray
    values: np.ndarray


def clear_sky(times):
    """Return the irradiance under a clear sky, W/m², at local solar times (int64 seconds since 1970): Haurwitz 1945."""
    days, seconds = np.divmod(times, DAY)
    year_day = (days - days.astype("datetime64[D]").astype("datetime64[Y]").astype("datetime64[D]").astype("int64")) + 1
    declination = np.deg2rad(23.45) * np.sin(2 * np.pi * (284 + year_day) / 365)  # Cooper 1969
    hour_angle = 2 * np.pi * (seconds / DAY - 0.5)
    latitude = np.deg2rad(LATITUDE)
    height = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(hour_angle)
    height = np.maximum(height, 1e-3)  # below the horizon the exponential is 0 to all digits
    return 1098 * height * np.exp(-0.057 / height)


@lru_cache
def cloud_field(seed):
    """Return a periodic field of noise, float32 (FIELD, FIELD), mean 0, deviation 1, with the spectrum of clouds (power -5/3 a line)."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(FIELD)[:, None], np.fft.rfftfreq(FIELD))
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(generator.standard_normal((FIELD, FIELD))) * frequency ** (-(5 / 3 + 1) / 2)
    field = np.fft.irfft2(spectrum, (FIELD, FIELD))
    return (field / field.std()).astype("float32")


def sample(field, column, row):
    """Return the periodic field at float32 (column, row) >= 0, arrays of one shape, between its cells bilinearly."""
    left, low = column.astype("int32"), row.astype("int32")
    right, up = column - left, row - low
    left, low = left % FIELD, low % FIELD
    first, second = low * FIELD, (low + 1) % FIELD * FIELD
    following = (left + 1) % FIELD
    field = field.ravel()
    below = field[first + left] * (1 - right) + field[first + following] * right
    above = field[second + left] * (1 - right) + field[second + following] * right
    return below * (1 - up) + above * up


def transmission(field, places, seconds, generator, wind, depth):
    """Return which part of the light passes a layer of clouds, float32 (instants, sensors), that `wind` (m/s) carries along."""
    towards = np.deg2rad(generator.normal(250, 20))  # the trade winds blow from the east-north-east
    start = generator.uniform(0, FIELD, 2)
    threshold = np.float32(generator.normal(0.2, 0.6))
    cells = places / CELL - places.min(0) / CELL
    at = []
    for axis, speed in enumerate((wind * np.sin(towards), wind * np.cos(towards))):
        passed = (start[axis] - speed / CELL * seconds) % FIELD  # in float64, as the day's last cells are far away
        at.append(passed[:, None].astype("float32") + cells[:, axis].astype("float32"))
    cover = np.clip((sample(field, *at) - threshold) / np.float32(0.4), 0, 1)
    return 1 - np.float32(depth) * cover * cover * (3 - 2 * cover)


def synthetic(day, seed=1, places=None, step=1):
    """Return the Readings of day number `day`, one every `step` seconds, at `places`, (sensors, 2) metres east and north.

    Without places they are those of SENSORS.
    """
    places = np.array(list(SENSORS.values())) if places is None else places
    seconds = np.arange(0, DAY, step)
    times = (FIRST_DAY + day).astype("int64") * DAY + seconds
    values = np.zeros((len(times), len(places)), "float32")
    clear = clear_sky(times)
    bright = clear > 0.01
    generator = np.random.default_rng([seed, day])
    low = transmission(cloud_field(seed), places, seconds[bright], generator, generator.uniform(4, 11), 0.75)
    high = transmission(cloud_field(seed + 1), places, seconds[bright], generator, generator.uniform(10, 25), 0.3)
    values[bright] = clear[bright, None] * low * high
    return Readings(times, values)


def read_csv(path):
    """Return (names of the sensors, Readings) of a file as the module describes.

    Raises ValueError, naming the file, where the header has no sensor or a row does not fit it.
    """
    with open(path) as file:
        names = [name.strip() for name in file.readline().split(",")][1:]
        if not names:
            raise ValueError(f"{path}: the first line must name the columns, as time,dh1,dh2,...")
        kinds = [("time", "U19"), ("values", "f4", (len(names),))]
        try:
            table = np.loadtxt(file, delimiter=",", dtype=kinds, ndmin=1)
            times = table["time"].astype("datetime64[s]").astype("int64")
        except ValueError as error:
            raise ValueError(f"{path}: a row is no time and {len(names)} numbers ({error})") from error
    return names, Readings(times, np.ascontiguousarray(table["values"]))


def read_folder(folder):
    """Return (names, places or None, Readings) of all solar*.csv in `folder`, by time; None where there is no such file.

    Raises ValueError for files with other sensors than the first, FileNotFoundError for a folder that does not exist.
    """
    if folder is None:
        return None
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: give --data a folder with {PATTERN}")
    read = {path: read_csv(path) for path in sorted(folder.glob(PATTERN))}
    if not read:
        return None
    first, (names, _) = next(iter(read.items()))
    for path, (other, _) in read.items():
        if other != names:
            raise ValueError(f"{path} has the sensors {', '.join(other)}, but {first} has {', '.join(names)}: all files must have the same")
    times = np.concatenate([readings.times for _, readings in read.values()])
    order = np.argsort(times, kind="stable")
    values = np.concatenate([readings.values for _, readings in read.values()])[order]
    return names, _places(folder, names), Readings(times[order], values)


def _places(folder, names):
    known = SENSORS
    path = folder / "places.csv"
    if path.exists():
        table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=[("name", "U32"), ("at", "f8", 2)], ndmin=1)
        known = {str(name).strip(): tuple(at) for name, at in zip(table["name"], table["at"], strict=True)}
    return np.array([known[name] for name in names]) if all(name in known for name in names) else None


def windows(readings, target, lags, granularity, horizon):
    """Return (recent, label): float32 (examples, lags, sensors), the newest reading first, and (examples,), both in kW/m².

    An example ends at each daylight instant that is a multiple of `granularity` seconds and whose `lags` readings and label, `horizon`
    seconds later at sensor number `target`, are all there. Raises ValueError where the horizon is no multiple of the granularity.
    """
    ahead, rest = divmod(horizon, granularity)
    if rest or ahead < 1:
        raise ValueError(f"solar: a horizon of {horizon} s is no multiple of the granularity, {granularity} s")
    kept = readings.times % granularity == 0
    times, values = readings.times[kept], readings.values[kept] / 1000
    ends = np.arange(lags - 1, len(times) - ahead)
    ends = ends[times[ends + ahead] - times[ends - lags + 1] == (ahead + lags - 1) * granularity]
    recent = values[ends[:, None] - np.arange(lags)]
    label = values[ends + ahead, target]
    good = np.isfinite(recent).all((1, 2)) & np.isfinite(label) & (values[ends].max(1) > 0)
    return recent[good], label[good]


def flat(recent):
    """Return (examples, 50): the 50 newest of the readings (examples, lags, sensors)."""
    return np.ascontiguousarray(recent.reshape(len(recent), -1)[:, :FEATURES])


def interpolation(places):
    """Return the weights (50 * 50, sensors) that make a map from readings: inverse squared distance (Shepard 1968), rows from north."""
    low, high = places.min(0) - SPACING / 2, places.max(0) + SPACING / 2
    east, north = (np.linspace(low[axis], high[axis], SIDE) for axis in (0, 1))
    grid = np.stack([np.tile(east, SIDE), np.repeat(north[::-1], SIDE)], 1)
    squared = ((grid[:, None] - places) ** 2).sum(2)
    weights = 1 / (squared + (SPACING / 10) ** 2)
    return (weights / weights.sum(1, keepdims=True)).astype("float32")


def as_maps(recent, weights):
    """Return (examples, 50, 50, 1): the maps of the newest of the readings (examples, lags, sensors)."""
    return (recent[:, 0] @ weights.T).reshape(-1, SIDE, SIDE, 1)


class Examples:
    """The examples of some days, made as far as they are asked for.

    Days come in blocks, whose examples are shuffled together, so that the first examples are the same however many are made.
    source: the function day -> Readings. shape: the function (examples, lags, sensors) -> inputs.
    """

    def __init__(self, source, days, shape, seed, target, lags, granularity, horizon):
        self.source, self.shape, self.seed = source, shape, seed
        self.window = {"target": target, "lags": lags, "granularity": granularity, "horizon": horizon}
        self.blocks = [days[start : start + BLOCK] for start in range(0, len(days), BLOCK)]
        self.made = []

    def block(self, number):
        parts = [windows(self.source(day), **self.window) for day in self.blocks[number]]
        recent, label = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.random.default_rng([self.seed, number]).permutation(len(label))
        return recent[order], label[order, None]

    def take(self, wanted, part):
        """Return the first `wanted` (None: all) readings (part 0) or labels (part 1)."""
        while len(self.made) < len(self.blocks) and (wanted is None or sum(len(y) for _, y in self.made) < wanted):
            self.made.append(self.block(len(self.made)))
        return np.concatenate([block[part] for block in self.made])[:wanted]

    def lazy(self):
        """Return (inputs, labels), each Lazy."""
        return Lazy(lambda wanted: self.shape(self.take(wanted, 0))), Lazy(lambda wanted: self.take(wanted, 1))


def _data(folder, shape_of, days, tested, seed, target, granularity, horizon, needs_places):
    found = read_folder(folder)
    if found is None:
        names, places = list(SENSORS), np.array(list(SENSORS.values()))
        all_days = np.arange(days)

        def source(day):
            return synthetic(int(day), seed, places, granularity)
    else:
        names, places, readings = found
        numbers = readings.times // DAY
        all_days = np.unique(numbers)

        def source(day):
            there = numbers == day
            return Readings(readings.times[there], readings.values[there])

    if target not in names:
        raise ValueError(f"solar: there is no sensor {target!r} to forecast: the files have {', '.join(names)}")
    if needs_places and places is None:
        raise ValueError(f"solar: the places of the sensors {', '.join(names)} are not all known: add places.csv with name, east, north")
    if len(all_days) < 2:
        raise ValueError("solar: one day cannot be split into training and test days: give at least two")
    order = np.random.default_rng(seed).permutation(all_days)
    held = min(max(1, round(tested * len(order))), len(order) - 1)
    lags, shape = shape_of(places, len(names))
    options = {"target": names.index(target), "lags": lags, "granularity": granularity, "horizon": horizon}
    parts = [Examples(source, part, shape, seed, **options) for part in (order[held:], order[:held])]
    (x, y), (x_test, y_test) = (part.lazy() for part in parts)
    return Data(x, y, x_test, y_test, found is not None, "" if found else NOTICE)


def rows(folder=None, days=384, tested=0.176, seed=1, target=TARGET, granularity=GRANULARITY, horizon=HORIZON):
    """Return Data for the MLPs: x float32 (examples, 50), the newest readings of all sensors; y (examples, 1), the target's, later.

    With the 17 sensors of SENSORS, the 50 are three instants of all but the oldest reading of the target.

    Args:
        folder: has solar*.csv as the module describes; otherwise the days are synthetic.
        days: how many synthetic days there are. tested: the share of the days that is the test set.
        target: the sensor that is forecast. granularity: seconds between readings and between examples. horizon: seconds ahead.
    """
    return _data(folder, lambda places, sensors: (-(-FEATURES // sensors), flat), days, tested, seed, target, granularity, horizon, False)


def maps(folder=None, days=64, tested=0.2, seed=1, target=TARGET, granularity=GRANULARITY, horizon=HORIZON):
    """Return Data for the CNNs: x float32 (examples, 50, 50, 1), maps of the newest readings; y and arguments as in `rows`."""

    def shape_of(places, sensors):
        weights = interpolation(places)
        return 1, lambda recent: as_maps(recent, weights)

    return _data(folder, shape_of, days, tested, seed, target, granularity, horizon, True)
