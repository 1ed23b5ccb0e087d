/* Buffers, far from one another in memory that nobody may touch, and the commands that copy. */
#define _GNU_SOURCE
#include "objects.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Buffers that are no sub-buffers, and the sum of their sizes. */
static cl_mem all;
static size_t allocated;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Buffers lie GAP bytes apart in a range of addresses of their own, and none where another one was, as long as that range lasts. */
enum { PAGE = 4096, ALIGNMENT = 128, GAP = 16 << 20 };
static const size_t RANGE = 1ull << 44;
static const int RESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

static size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Memory of whole pages with nothing beside it, or 0. */
static char *take(size_t bytes) {
  static char *next, *end;
  if ((size_t)(end - next) < bytes + GAP) {
    next = mmap(0, RANGE, PROT_NONE, RESERVED, -1, 0);
    if (next == MAP_FAILED) {
      next = end = 0;
      return 0;
    }
    end = next + RANGE;
    next += GAP;
  }
  char *found = next;
  next += bytes + GAP;
  return mprotect(found, bytes, PROT_READ | PROT_WRITE) ? 0 : found;
}

/* EMULATED_GUARD: whether a buffer ends at the page behind it (up to its alignment) or begins at the one before it, or both in turn. */
static int ends_at_guard(void) {
  static unsigned count;
  const char *guard = setting("EMULATED_GUARD", "end");
  return !strcmp(guard, "alternate") ? __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST) % 2 : strcmp(guard, "start") != 0;
}

static cl_mem create_buffer(cl_context c, cl_mem_flags flags, size_t size, void *host, cl_int *err) {
  if (BAD(c)) FAIL(CL_INVALID_CONTEXT);
  if (!size || size > memory() / 100 * 85) FAIL(CL_INVALID_BUFFER_SIZE);
  if (!!host != !!(flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR))) FAIL(CL_INVALID_HOST_PTR);
  if (allocated + size > memory()) FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE);
  cl_mem m = make(sizeof *m);
  m->context = c, m->flags = flags & 7 ? flags : flags | CL_MEM_READ_WRITE, m->size = size, m->host = host;
  m->total = rounded(size, PAGE);
  pthread_mutex_lock(&lock);
  m->start = take(m->total);
  pthread_mutex_unlock(&lock);
  if (!m->start) {
    free(m);
    FAIL(CL_MEM_OBJECT_ALLOCATION_FAILURE);
  }
  m->data = (char *)m->start + (ends_at_guard() ? m->total - rounded(size, ALIGNMENT) : 0);
  uint32_t *words = m->start, poison = strtoul(setting("EMULATED_POISON", POISON), 0, 0);
  if (poison) /* what is around the buffer in its pages, too */
    for (size_t k = 0; k < m->total / 4; k++) words[k] = poison;
  if (host) memcpy(m->data, host, size);
  pthread_mutex_lock(&lock);
  allocated += size;
  m->next = all;
  if (all) all->previous = m;
  all = m;
  pthread_mutex_unlock(&lock);
  retain_context(c);
  if (err) *err = 0;
  return m;
}
/* Which buffer is nearest to an address, as a clause in `to`. */
__attribute__((visibility("default"))) void emulated_nearest(uint64_t address, char *to, size_t size) {
  int64_t least = INT64_MAX, at = 0;
  cl_mem nearest = 0;
  pthread_mutex_lock(&lock);
  for (cl_mem m = all; m; m = m->next) {
    int64_t from = (int64_t)(address - (uint64_t)m->data), far = from < 0                  ? -from
                                                                 : from < (int64_t)m->size ? 0
                                                                                           : from - (int64_t)m->size + 1;
    if (far < least) least = far, at = from, nearest = m;
  }
  if (!nearest)
    snprintf(to, size, "there are no buffers");
  else if (at < 0)
    snprintf(to, size, "%lld bytes before a buffer of %zu bytes", (long long)-at, nearest->size);
  else
    snprintf(to, size, "byte %lld of a buffer of %zu bytes", (long long)at, nearest->size);
  pthread_mutex_unlock(&lock);
}
static cl_int retain_mem(cl_mem m) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  __atomic_add_fetch(&m->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static cl_int release_mem(cl_mem m) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  if (!__atomic_sub_fetch(&m->refs, 1, __ATOMIC_SEQ_CST)) {
    for (struct destructor *d = m->destructors, *n; d; d = n) {
      n = d->next;
      d->f(m, d->data);
      free(d);
    }
    if (m->parent)
      release_mem(m->parent);
    else {
      if (m->flags & CL_MEM_USE_HOST_PTR) memcpy(m->host, m->data, m->size);
      mmap(m->start, m->total, PROT_NONE, RESERVED | MAP_FIXED, -1, 0);
      pthread_mutex_lock(&lock);
      allocated -= m->size;
      if (m->next) m->next->previous = m->previous;
      if (m->previous)
        m->previous->next = m->next;
      else
        all = m->next;
      pthread_mutex_unlock(&lock);
    }
    release_context(m->context);
    m->live = 0;
    free(m);
  }
  return 0;
}
static cl_int mem_destructor(cl_mem m, void(CL_CALLBACK *f)(cl_mem, void *), void *data) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  struct destructor *d = malloc(sizeof *d);
  d->f = f;
  d->data = data;
  d->next = m->destructors;
  m->destructors = d;
  return 0;
}
static cl_mem create_sub_buffer(cl_mem b, cl_mem_flags flags, cl_buffer_create_type type, const void *info, cl_int *err) {
  if (BAD(b) || b->parent) FAIL(CL_INVALID_MEM_OBJECT);
  const cl_buffer_region *r = info;
  if (type != CL_BUFFER_CREATE_TYPE_REGION || !r || r->origin + r->size > b->size) FAIL(CL_INVALID_VALUE);
  if (!r->size) FAIL(CL_INVALID_BUFFER_SIZE);
  if (r->origin % 128) FAIL(CL_MISALIGNED_SUB_BUFFER_OFFSET);
  cl_mem m = make(sizeof *m);
  m->context = b->context;
  retain_context(b->context);
  m->parent = b;
  retain_mem(b);
  m->flags = flags ? flags : b->flags;
  m->size = r->size;
  m->offset = r->origin;
  m->data = b->data + r->origin;
  m->host = b->host ? (char *)b->host + r->origin : 0;
  if (err) *err = 0;
  return m;
}
static cl_int mem_info(cl_mem m, cl_mem_info name, size_t size, void *value, size_t *ret) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  switch (name) {
  case CL_MEM_TYPE: UINT(CL_MEM_OBJECT_BUFFER);
  case CL_MEM_FLAGS: ULONG(m->flags);
  case CL_MEM_SIZE: SIZE(m->size);
  case CL_MEM_HOST_PTR: GIVE(void *, m->flags &CL_MEM_USE_HOST_PTR ? m->host : 0);
  case CL_MEM_MAP_COUNT: UINT(m->maps);
  case CL_MEM_REFERENCE_COUNT: UINT(m->refs);
  case CL_MEM_CONTEXT: GIVE(cl_context, m->context);
  case CL_MEM_ASSOCIATED_MEMOBJECT: GIVE(cl_mem, m->parent);
  case CL_MEM_OFFSET: SIZE(m->offset);
  }
  return CL_INVALID_VALUE;
}
#define WITHIN(m, o, n)                                                                                                                    \
  do {                                                                                                                                     \
    if (BAD(m)) return CL_INVALID_MEM_OBJECT;                                                                                              \
    if ((o) + (n) > (m)->size || (o) + (n) < (o)) return CL_INVALID_VALUE;                                                                 \
  } while (0)
static cl_int read_buffer(
    cl_command_queue q, cl_mem m, cl_bool block, size_t o, size_t n, void *to, cl_uint nwait, const cl_event *wait, cl_event *event) {
  WITHIN(m, o, n);
  if (!to) return CL_INVALID_VALUE;
  BEGIN;
  memcpy(to, m->data + o, n);
  END(CL_COMMAND_READ_BUFFER);
}
static cl_int write_buffer(cl_command_queue q, cl_mem m, cl_bool block, size_t o, size_t n, const void *from, cl_uint nwait,
    const cl_event *wait, cl_event *event) {
  WITHIN(m, o, n);
  if (!from) return CL_INVALID_VALUE;
  BEGIN;
  memcpy(m->data + o, from, n);
  END(CL_COMMAND_WRITE_BUFFER);
}
static cl_int copy_buffer(
    cl_command_queue q, cl_mem a, cl_mem b, size_t oa, size_t ob, size_t n, cl_uint nwait, const cl_event *wait, cl_event *event) {
  WITHIN(a, oa, n);
  WITHIN(b, ob, n);
  char *x = a->data + oa, *y = b->data + ob;
  if (x < y + n && y < x + n) return CL_MEM_COPY_OVERLAP;
  BEGIN;
  memcpy(y, x, n);
  END(CL_COMMAND_COPY_BUFFER);
}
static cl_int fill_buffer(
    cl_command_queue q, cl_mem m, const void *p, size_t np, size_t o, size_t n, cl_uint nwait, const cl_event *wait, cl_event *event) {
  WITHIN(m, o, n);
  if (!p || !np || o % np || n % np) return CL_INVALID_VALUE;
  BEGIN;
  for (size_t k = 0; k < n; k += np) memcpy(m->data + o + k, p, np);
  END(CL_COMMAND_FILL_BUFFER);
}
static cl_int rect(
    char *to, const size_t *ot, size_t rt, size_t st, const char *from, const size_t *of, size_t rf, size_t sf, const size_t *r) {
  rt = rt ? rt : r[0];
  rf = rf ? rf : r[0];
  st = st ? st : rt * r[1];
  sf = sf ? sf : rf * r[1];
  for (size_t z = 0; z < r[2]; z++)
    for (size_t y = 0; y < r[1]; y++)
      memcpy(to + ot[0] + (ot[1] + y) * rt + (ot[2] + z) * st, from + of[0] + (of[1] + y) * rf + (of[2] + z) * sf, r[0]);
  return 0;
}
static cl_int read_rect(cl_command_queue q, cl_mem m, cl_bool block, const size_t *ob, const size_t *oh, const size_t *r, size_t rb,
    size_t sb, size_t rh, size_t sh, void *to, cl_uint nwait, const cl_event *wait, cl_event *event) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  BEGIN;
  rect(to, oh, rh, sh, m->data, ob, rb, sb, r);
  END(CL_COMMAND_READ_BUFFER_RECT);
}
static cl_int write_rect(cl_command_queue q, cl_mem m, cl_bool block, const size_t *ob, const size_t *oh, const size_t *r, size_t rb,
    size_t sb, size_t rh, size_t sh, const void *from, cl_uint nwait, const cl_event *wait, cl_event *event) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  BEGIN;
  rect(m->data, ob, rb, sb, from, oh, rh, sh, r);
  END(CL_COMMAND_WRITE_BUFFER_RECT);
}
static cl_int copy_rect(cl_command_queue q, cl_mem a, cl_mem b, const size_t *oa, const size_t *ob, const size_t *r, size_t ra, size_t sa,
    size_t rb, size_t sb, cl_uint nwait, const cl_event *wait, cl_event *event) {
  if (BAD(a) || BAD(b)) return CL_INVALID_MEM_OBJECT;
  BEGIN;
  rect(b->data, ob, rb, sb, a->data, oa, ra, sa, r);
  END(CL_COMMAND_COPY_BUFFER_RECT);
}
static void *map_buffer(cl_command_queue q, cl_mem m, cl_bool block, cl_map_flags flags, size_t o, size_t n, cl_uint nwait,
    const cl_event *wait, cl_event *event, cl_int *err) {
  if (BAD(q)) FAIL(CL_INVALID_COMMAND_QUEUE);
  if (BAD(m)) FAIL(CL_INVALID_MEM_OBJECT);
  if (!n || o + n > m->size) FAIL(CL_INVALID_VALUE);
  cl_int w = waiting(nwait, wait);
  if (w) FAIL(w);
  m->maps++;
  tell(q, CL_COMMAND_MAP_BUFFER, now(), event);
  if (err) *err = 0;
  return m->data + o;
}
static cl_int unmap(cl_command_queue q, cl_mem m, void *p, cl_uint nwait, const cl_event *wait, cl_event *event) {
  if (BAD(m)) return CL_INVALID_MEM_OBJECT;
  if (!m->maps || (char *)p < m->data || (char *)p >= m->data + m->size) return CL_INVALID_VALUE;
  BEGIN;
  m->maps--;
  END(CL_COMMAND_UNMAP_MEM_OBJECT);
}

void add_buffers(void) {
  T(clCreateBuffer, create_buffer);
  T(clRetainMemObject, retain_mem);
  T(clReleaseMemObject, release_mem);
  T(clGetMemObjectInfo, mem_info);
  T(clEnqueueReadBuffer, read_buffer);
  T(clEnqueueWriteBuffer, write_buffer);
  T(clEnqueueCopyBuffer, copy_buffer);
  T(clEnqueueFillBuffer, fill_buffer);
  T(clEnqueueReadBufferRect, read_rect);
  T(clEnqueueWriteBufferRect, write_rect);
  T(clEnqueueCopyBufferRect, copy_rect);
  T(clEnqueueMapBuffer, map_buffer);
  T(clEnqueueUnmapMemObject, unmap);
  T(clCreateSubBuffer, create_sub_buffer);
  T(clSetMemObjectDestructorCallback, mem_destructor);
}
