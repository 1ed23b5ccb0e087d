/* The execution of a launch.

   With a seed, waves run in an order that no barrier forbids, as on a GPU: groups begin in random order, some of them at a time, and after
   a random number of instructions another wave continues. Without (seed 0), wave after wave runs up to its next barrier, group after group.
 */
#define _GNU_SOURCE
#include "waves.h"
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xmmintrin.h>

enum { EXEC = 126, LOCAL_BASE = 235, PC = 256, STRIDE = 259, ULPS = 270, REGISTERS = 2048 /* bytes */, MOST_RESIDENT = 8 };

struct wave {
  uint32_t *s, *v, *acc; /* scalar, vector and accumulation registers */
  uint8_t *scratch, *local;
  struct group *group;
  uint64_t ran; /* instructions since the last barrier */
  int done, waiting;
  unsigned csr;
};

/* A group that is being executed. */
struct group {
  struct wave *waves;
  uint8_t *local;
  uint32_t left, waiting;
};

/* ---- faults ---- */

static __thread sigjmp_buf fault;
static __thread volatile int executing;
static __thread volatile uint64_t fault_address;
static struct sigaction before[2];

static void on_fault(int signal, siginfo_t *info, void *context) {
  if (executing) {
    fault_address = (uint64_t)info->si_addr;
    siglongjmp(fault, 1);
  }
  sigaction(signal, &before[signal == SIGBUS], 0); /* a fault of the program's own: it happens again, without us */
}

static void install_handlers(void) {
  struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  struct sigaction now;
  int signals[2] = {SIGSEGV, SIGBUS};
  for (int k = 0; k < 2; k++) {
    sigaction(signals[k], 0, &now);
    if (now.sa_sigaction != on_fault) sigaction(signals[k], &ours, &before[k]);
  }
}

/* ---- the beginning of a wave ---- */

static unsigned csr_of(unsigned denormals) { return 0x1F80 | ((denormals & 1) ? 0 : 0x40) | ((denormals & 2) ? 0 : 0x8000); }

static void fill(void *memory, uint64_t bytes, uint32_t value) {
  for (uint64_t k = 0; k < bytes / 4; k++) ((uint32_t *)memory)[k] = value;
}

static void begin_wave(const struct launch *l, struct wave *w, uint32_t start, const uint32_t *gid) {
  static const struct {
    int at;
    uint32_t value;
  } floats[] = {{240, 0x3f000000}, {241, 0xbf000000}, {242, 0x3f800000}, {243, 0xbf800000}, {244, 0x40000000}, {245, 0xc0000000},
      {246, 0x40800000}, {247, 0xc0800000}, {248, 0x3e22f983}};
  uint32_t items = l->group[0] * l->group[1] * l->group[2], lanes = items - start < l->wave ? items - start : l->wave;
  uint64_t mask = lanes == 64 ? ~0ull : (1ull << lanes) - 1;
  memset(w->s, 0, REGISTERS);
  fill(w->v, 1024 * l->wave, l->poison);
  fill(w->acc, 1024 * l->wave, l->poison);
  fill(w->scratch, (uint64_t)l->scratch * l->wave, l->poison);
  fill(w->s, 106 * 4, l->poison);
  for (uint32_t k = 0; k <= 64; k++) w->s[128 + k] = k;
  for (uint32_t k = 1; k <= 16; k++) w->s[192 + k] = -k;
  for (size_t k = 0; k < sizeof floats / sizeof *floats; k++) w->s[floats[k].at] = floats[k].value;
  w->s[EXEC] = mask, w->s[EXEC + 1] = mask >> 32;
  w->s[PC] = (uint32_t)l->place, w->s[PC + 1] = l->place >> 32;
  w->s[LOCAL_BASE] = (uint64_t)w->local >> 32; /* of generic pointers to local memory the upper half */
  for (uint32_t k = 0; k < l->users; k++) w->s[k] = l->user[k];
  if (l->arch == 1) {
    w->s[115] = (gid[1] & 0xFFFF) | gid[2] << 16, w->s[117] = gid[0];
  } else {
    uint32_t at = l->rsrc2 >> 1 & 31;
    for (int k = 0; k < 3; k++)
      if (l->rsrc2 >> (7 + k) & 1) w->s[at++] = gid[k];
  }
  for (uint32_t n = 0; n < lanes; n++) {
    uint32_t t = start + n, x = l->group[0], y = l->group[1];
    w->v[n] = t / (x * y) << 20 | t / x % y << 10 | t % x;
  }
  w->s[STRIDE] = l->scratch;
  w->s[ULPS] = l->ulps; /* of patches/approximations.py */
  w->csr = csr_of(l->denormals);
  w->done = w->waiting = 0;
  w->ran = 0;
}

/* ---- execution ---- */

/* Executes up to `most` instructions of a wave, up to a barrier or its end. */
static enum outcome advance(struct launch *l, struct wave *w, uint64_t most) {
  /* The global memory begins at address 0. */
  uint64_t local = (uint64_t)w->local;
  uint64_t memory[8] = {(uint64_t)w->s, (uint64_t)w->v, 0, local, (uint64_t)w->scratch, (uint64_t)w->acc, 0, local};
  volatile uint64_t pc = 0;
  unsigned outside = _mm_getcsr();
  volatile enum outcome rc = DONE;
  if (sigsetjmp(fault, 0)) {
    executing = 0;
    _mm_setcsr(outside);
    l->place = pc, l->address = fault_address;
    return BAD_ACCESS;
  }
  _mm_setcsr(w->csr);
  for (uint64_t n = 0; n < most; n++) {
    pc = w->s[PC] | (uint64_t)w->s[PC + 1] << 32;
    if (pc == ~0ull) {
      w->done = 1, w->group->left--;
      break;
    }
    if (pc - l->base >= l->size) {
      rc = LEFT_ITS_CODE;
      break;
    }
    struct step *t = l->steps + ((pc - l->base) >> 2);
    if (!t->fn) {
      _mm_setcsr(outside);
      if (l->compile(pc) || !t->fn) {
        rc = NOT_COMPILED;
        break;
      }
      _mm_setcsr(w->csr);
    }
    t->count++;
    t->lanes += __builtin_popcount(w->s[EXEC]) + (l->wave == 64 ? __builtin_popcount(w->s[EXEC + 1]) : 0);
    const uint8_t *b = t->buffer;
    executing = 1;
    t->fn(memory[b[0]], memory[b[1]], memory[b[2]], memory[b[3]], memory[b[4]], memory[b[5]]);
    executing = 0;
    l->executed++;
    if (t->mode) _mm_setcsr(w->csr = csr_of(t->mode - 1));
    if (++w->ran > l->limit) {
      rc = TOO_LONG;
      break;
    }
    if (t->waits) {
      w->waiting = 1, w->group->waiting++;
      break;
    }
  }
  _mm_setcsr(outside);
  if (rc) l->place = pc;
  return rc;
}

/* The next of a sequence of random numbers (xorshift). */
static uint64_t draw(uint64_t *state) {
  *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
  return *state;
}

static uint64_t divisor(uint64_t a, uint64_t b) {
  while (b) {
    uint64_t r = a % b;
    a = b, b = r;
  }
  return a;
}

static void begin_group(const struct launch *l, struct group *g, uint32_t count, uint64_t number) {
  uint32_t gid[3] = {number % l->groups[0], number / l->groups[0] % l->groups[1], number / l->groups[0] / l->groups[1]};
  fill(g->local, (l->local + 3) / 4 * 4, l->poison);
  for (uint32_t k = 0; k < count; k++) begin_wave(l, g->waves + k, k * l->wave, gid);
  g->left = count, g->waiting = 0;
}

/* Lets the waves of a group continue where all that are left have come to the barrier. */
static void release(struct group *g, uint32_t count) {
  if (!g->left || g->waiting < g->left) return;
  for (uint32_t k = 0; k < count; k++) g->waves[k].waiting = 0, g->waves[k].ran = 0;
  g->waiting = 0;
}

/* A wave of a group that can continue: the first of them, or at random. */
static struct wave *choose(struct group *g, uint32_t count, uint64_t *state) {
  uint32_t start = state ? draw(state) % count : 0;
  for (uint32_t k = 0; k < count; k++) {
    struct wave *w = g->waves + (start + k) % count;
    if (!w->done && !w->waiting) return w;
  }
  return 0;
}

static enum outcome execute_groups(struct launch *l, struct group *groups, uint32_t resident, uint32_t count) {
  uint64_t total = (uint64_t)l->groups[0] * l->groups[1] * l->groups[2], begun = 0, state = l->seed, step = 1, first = 0;
  if (l->seed) { /* the groups' order: multiples of a number without a common divisor with theirs */
    for (int k = 0; k < 8; k++) draw(&state);
    first = draw(&state) % total;
    do step = draw(&state) % total + 1;
    while (divisor(step, total) != 1);
  }
  uint32_t live = 0, at = 0;
  while (begun < total || live) {
    struct group *g = groups + (l->seed ? draw(&state) % resident : at);
    if (!g->left) {
      if (begun == total) {
        at = (at + 1) % resident;
        continue;
      }
      begin_group(l, g, count, (first + begun++ % total * step) % total);
      live++;
    }
    struct wave *w = choose(g, count, l->seed ? &state : 0);
    if (!w) return DEADLOCK;
    /* Short turns and long ones: a wave may be far ahead of the others, or all of them close together. */
    enum outcome rc = advance(l, w, l->seed ? 1 + draw(&state) % (1ull << (draw(&state) % 14)) : ~0ull);
    if (rc) return rc;
    release(g, count);
    if (!g->left) live--;
  }
  return DONE;
}

__attribute__((visibility("default"))) int emulated_run(struct launch *l) {
  install_handlers();
  uint32_t items = l->group[0] * l->group[1] * l->group[2], count = (items + l->wave - 1) / l->wave;
  uint64_t total = (uint64_t)l->groups[0] * l->groups[1] * l->groups[2], four = 1ull << 32;
  uint32_t resident = !l->seed || !l->resident ? 1 : l->resident < MOST_RESIDENT ? l->resident : MOST_RESIDENT;
  if (resident > total) resident = total;
  struct group groups[MOST_RESIDENT] = {0};
  /* The functions compute with the addresses of lanes that are off, too: of local memory all addresses of 32 bits are there. Each begins
     at a multiple of 2^32, so that a generic pointer to it is its base and an offset. */
  uint8_t *space = mmap(0, four * (resident + 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return NO_MEMORY;
  struct wave *waves = calloc(count * resident, sizeof *waves);
  for (uint32_t k = 0; k < count * resident; k++) {
    struct wave *w = waves + k;
    w->s = aligned_alloc(64, REGISTERS);
    w->v = aligned_alloc(64, 1024 * l->wave);
    w->acc = l->wave == 64 ? aligned_alloc(64, 1024 * l->wave) : w->v;
    w->scratch = l->scratch ? aligned_alloc(64, ((size_t)l->scratch * l->wave + 127) / 64 * 64) : 0;
    w->group = groups + k / count;
    w->local = (uint8_t *)(((uint64_t)space + four - 1) / four * four + four * (k / count));
  }
  for (uint32_t k = 0; k < resident; k++) groups[k].waves = waves + k * count, groups[k].local = groups[k].waves->local;
  enum outcome rc = execute_groups(l, groups, resident, count);
  for (uint32_t k = 0; k < count * resident; k++) {
    if (waves[k].acc != waves[k].v) free(waves[k].acc);
    free(waves[k].s), free(waves[k].v), free(waves[k].scratch);
  }
  free(waves);
  munmap(space, four * (resident + 1));
  return rc;
}
