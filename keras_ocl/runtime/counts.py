"""Counters of a device's work."""


class Statistics:
    """Counters of a device's work.

    `kernels` counts those compiled in `builds` (neither counts cache hits); `upload_bytes` and `download_bytes` count bytes of host arrays.
    """

    COUNTS = ("builds", "kernels", "launches", "uploads", "upload_bytes", "downloads", "download_bytes")

    def __init__(self, memory):
        self._memory = memory
        self.reset()

    def reset(self):
        """Start all counts from 0."""
        self.builds = self.kernels = self.launches = self.uploads = self.upload_bytes = self.downloads = self.download_bytes = 0

    @property
    def bytes_current(self):
        return self._memory.current

    @property
    def bytes_peak(self):
        return self._memory.peak

    def __repr__(self):
        counts = (*self.COUNTS, "bytes_current", "bytes_peak")
        return f"Statistics({', '.join(f'{name}={getattr(self, name)}' for name in counts)})"
