"""What is changed in tinygrad's emulator when it is loaded, where its results were not those of the hardware."""


def apply(emu, pcode):
    """Change the modules `emu` and `pcode` of the emulator; AssertionError where they are not what the changes were made for."""
    # These import tinygrad.
    from tests.emulated.patches import accumulation, approximations, arithmetic, halves, memory, relative, scalar, sdwa

    for part in (arithmetic, approximations, memory, halves, relative, scalar, accumulation, sdwa):
        part.apply(emu, pcode)
