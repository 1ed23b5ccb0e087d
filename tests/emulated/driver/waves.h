/* What executes a launch: waves of work-items, by one function in machine code for each kind of instruction (instructions.py makes them).
 */
#ifndef EMULATED_WAVES_H
#define EMULATED_WAVES_H
#include <stdint.h>

typedef void (*execute)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* An instruction of a program, as launching.py has it (Step).
   buffer: which of a wave's memories the function takes at each place. waits: whether it is a barrier.
   mode: 1 + what the instruction makes of denormal floats, or 0. count, lanes: how often it ran, and for how many work-items. */
struct step {
  execute fn;
  uint64_t count, lanes;
  uint8_t buffer[6], waits, mode;
};

/* A launch, as launching.py has it (Launch). At the beginning `place` is the address of the first instruction, after a fault that of the
   one at fault, with the address that it accessed. */
struct launch {
  uint64_t base, size;
  struct step *steps;
  int (*compile)(uint64_t);
  uint32_t groups[3], group[3], wave, arch, users, user[32], rsrc2, scratch, local, denormals, poison, resident, ulps;
  uint64_t seed, limit, executed, place, address;
};

enum outcome { DONE, NOT_COMPILED, LEFT_ITS_CODE, TOO_LONG, BAD_ACCESS, NO_MEMORY, DEADLOCK };

#endif
