/* Events, markers and barriers. */
#include "objects.h"
#include <stdlib.h>
#include <time.h>

static cl_int retain_event(cl_event e) {
  if (BAD(e)) return CL_INVALID_EVENT;
  __atomic_add_fetch(&e->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static cl_int release_event(cl_event e) {
  if (BAD(e)) return CL_INVALID_EVENT;
  if (!__atomic_sub_fetch(&e->refs, 1, __ATOMIC_SEQ_CST)) {
    e->live = 0;
    release_context(e->context);
    if (e->queue) release_queue(e->queue);
    free(e);
  }
  return 0;
}
cl_int waiting(cl_uint n, const cl_event *list) {
  if (!n != !list) return CL_INVALID_EVENT_WAIT_LIST;
  for (cl_uint k = 0; k < n; k++) {
    if (BAD(list[k])) return CL_INVALID_EVENT_WAIT_LIST;
    while (__atomic_load_n(&list[k]->status, __ATOMIC_SEQ_CST) > 0) {
      struct timespec t = {0, 1000000};
      nanosleep(&t, 0);
    }
    if (list[k]->status < 0) return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  }
  return 0;
}
void tell(cl_command_queue q, cl_command_type type, cl_ulong begin, cl_event *out) {
  if (!out) return;
  cl_event e = make(sizeof *e);
  e->context = q->context;
  retain_context(q->context);
  e->queue = q;
  retain_queue(q);
  e->type = type;
  e->status = CL_COMPLETE;
  e->times[0] = e->times[1] = e->times[2] = begin;
  e->times[3] = now();
  *out = e;
}
static cl_int wait_for_events(cl_uint n, const cl_event *list) {
  return n && list ? waiting(n, list) == CL_INVALID_EVENT_WAIT_LIST ? CL_INVALID_EVENT : waiting(n, list) : CL_INVALID_VALUE;
}
static cl_int event_info(cl_event e, cl_event_info name, size_t size, void *value, size_t *ret) {
  if (BAD(e)) return CL_INVALID_EVENT;
  switch (name) {
  case CL_EVENT_COMMAND_QUEUE: GIVE(cl_command_queue, e->queue);
  case CL_EVENT_CONTEXT: GIVE(cl_context, e->context);
  case CL_EVENT_COMMAND_TYPE: UINT(e->type);
  case CL_EVENT_COMMAND_EXECUTION_STATUS: GIVE(cl_int, e->status);
  case CL_EVENT_REFERENCE_COUNT: UINT(e->refs);
  }
  return CL_INVALID_VALUE;
}
static cl_int event_profiling(cl_event e, cl_profiling_info name, size_t size, void *value, size_t *ret) {
  if (BAD(e)) return CL_INVALID_EVENT;
  if (!e->queue || !(e->queue->properties & CL_QUEUE_PROFILING_ENABLE)) return CL_PROFILING_INFO_NOT_AVAILABLE;
  if (name < CL_PROFILING_COMMAND_QUEUED || name > CL_PROFILING_COMMAND_END) return CL_INVALID_VALUE;
  ULONG(e->times[name - CL_PROFILING_COMMAND_QUEUED]);
}
static cl_int set_event_callback(cl_event e, cl_int at, void(CL_CALLBACK *f)(cl_event, cl_int, void *), void *data) {
  if (BAD(e)) return CL_INVALID_EVENT;
  if (!f) return CL_INVALID_VALUE;
  if (e->status <= at) {
    f(e, e->status < 0 ? e->status : at, data);
    return 0;
  }
  struct callback *c = malloc(sizeof *c);
  c->f = f;
  c->data = data;
  c->at = at;
  c->next = e->callbacks;
  e->callbacks = c;
  return 0;
}
static cl_event create_user_event(cl_context c, cl_int *err) {
  if (BAD(c)) FAIL(CL_INVALID_CONTEXT);
  cl_event e = make(sizeof *e);
  e->context = c;
  retain_context(c);
  e->type = CL_COMMAND_USER;
  e->status = CL_SUBMITTED;
  if (err) *err = 0;
  return e;
}
static cl_int set_user_event(cl_event e, cl_int status) {
  if (BAD(e)) return CL_INVALID_EVENT;
  __atomic_store_n(&e->status, status, __ATOMIC_SEQ_CST);
  for (struct callback *c = e->callbacks; c; c = c->next) c->f(e, status, c->data);
  e->callbacks = 0;
  return 0;
}
static cl_int flush(cl_command_queue q) { return BAD(q) ? CL_INVALID_COMMAND_QUEUE : 0; }
static cl_int marker_list(cl_command_queue q, cl_uint nwait, const cl_event *wait, cl_event *event) {
  BEGIN;
  END(CL_COMMAND_MARKER);
}
static cl_int barrier_list(cl_command_queue q, cl_uint nwait, const cl_event *wait, cl_event *event) {
  BEGIN;
  END(CL_COMMAND_BARRIER);
}
static cl_int marker(cl_command_queue q, cl_event *event) { return marker_list(q, 0, 0, event); }
static cl_int barrier(cl_command_queue q) { return flush(q); }
static cl_int wait_events(cl_command_queue q, cl_uint n, const cl_event *list) { return marker_list(q, n, list, 0); }
static cl_int migrate(
    cl_command_queue q, cl_uint n, const cl_mem *m, cl_mem_migration_flags f, cl_uint nwait, const cl_event *wait, cl_event *event) {
  BEGIN;
  END(CL_COMMAND_MIGRATE_MEM_OBJECTS);
}

void add_events(void) {
  T(clWaitForEvents, wait_for_events);
  T(clGetEventInfo, event_info);
  T(clRetainEvent, retain_event);
  T(clReleaseEvent, release_event);
  T(clGetEventProfilingInfo, event_profiling);
  T(clFlush, flush);
  T(clFinish, flush);
  T(clEnqueueMarker, marker);
  T(clEnqueueWaitForEvents, wait_events);
  T(clEnqueueBarrier, barrier);
  T(clEnqueueMarkerWithWaitList, marker_list);
  T(clEnqueueBarrierWithWaitList, barrier_list);
  T(clEnqueueMigrateMemObjects, migrate);
  T(clSetEventCallback, set_event_callback);
  T(clCreateUserEvent, create_user_event);
  T(clSetUserEventStatus, set_user_event);
}
