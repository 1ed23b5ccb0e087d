"""What zero-copy memory gives: the bytes that go to and from the device in an epoch, and its time. A measure of the dense study."""

from comparisons.measures import spread

EPOCHS = 5  # timed, after one that compiles
MIB = 2**20
# How often each byte for the device is written: memory that the device sees is written once, otherwise staging memory comes before it.
WRITES = {"shared": 1, "mapped": 1, "copied": 2}


def measure(context):
    """Train some epochs after one that compiles, on backend ocl.

    Adds
        sharing: how host memory and the device's are shared ("shared", "mapped" or "copied");
        upload_mib, download_mib: MiB per epoch of arrays on the host that went there and back;
        written_mib: MiB per epoch that were written for that;
        epoch_s, fit_ms: spreads of the seconds per epoch and the milliseconds per step.
    """
    from keras_ocl import runtime

    subject, device = context.subject, runtime.current_device()
    subject.restart(0)
    context.progress("compiling")
    subject.fit(0)
    before = device.statistics.upload_bytes, device.statistics.download_bytes
    seconds = []
    for epoch in range(1, EPOCHS + 1):
        context.progress("timing", epoch, EPOCHS)
        seconds.append(subject.fit(epoch)[1])
    after = device.statistics.upload_bytes, device.statistics.download_bytes
    up, down = ((now - then) / EPOCHS / MIB for now, then in zip(after, before, strict=True))
    return {
        "sharing": device.sharing,
        "upload_mib": up,
        "download_mib": down,
        "written_mib": up * WRITES[device.sharing] + down,
        "epoch_s": spread(seconds),
        "fit_ms": spread([s / subject.steps * 1e3 for s in seconds]),
    }
