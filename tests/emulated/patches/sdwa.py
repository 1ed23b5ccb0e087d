"""CDNA's instructions on parts of registers (SDWA): absolute values and signs of their sources, which were ignored."""


def apply(emu, pcode):
    compile_before, select_before, now = emu._compile_sdwa, emu._sdwa_select, {}

    def select(value, part, extend):
        selected, k = select_before(value, part, extend), now["calls"] % now["sources"]
        now["calls"] += 1
        top = 0x8000 if now["half"] else 0x80000000
        if emu._iattr(now["inst"], f"src{k}_abs"):
            selected = selected & emu._c(top - 1)
        return selected ^ emu._c(top) if emu._iattr(now["inst"], f"src{k}_neg") else selected

    def sdwa(inst, ctx):
        kinds = [kind for kind in inst.op.name.split("_") if kind in ("F16", "F32")]
        now.update(inst=inst, calls=0, sources=1 if isinstance(inst, emu.irc.VOP1_SDWA) else 2, half=kinds[-1:] == ["F16"])
        return compile_before(inst, ctx)

    emu._sdwa_select = select
    for cls, handler in list(emu._INST_HANDLERS.items()):
        if handler is compile_before:
            emu._INST_HANDLERS[cls] = sdwa
