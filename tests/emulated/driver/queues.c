/* Contexts and queues in order. */
#include "objects.h"
#include <stdlib.h>
#include <string.h>

static cl_context create_context(const cl_context_properties *p, cl_uint n, const cl_device_id *d,
    void(CL_CALLBACK *f)(const char *, const void *, size_t, void *), void *u, cl_int *err) {
  if (!n || !d) FAIL(CL_INVALID_VALUE);
  if (d[0] != &the_device) FAIL(CL_INVALID_DEVICE);
  cl_context c = make(sizeof *c);
  if (p) {
    while (p[c->nproperties]) c->nproperties += 2;
    c->nproperties++;
    c->properties = malloc(c->nproperties * sizeof *p);
    memcpy(c->properties, p, c->nproperties * sizeof *p);
  }
  if (err) *err = CL_SUCCESS;
  return c;
}
static cl_context create_context_from_type(const cl_context_properties *p, cl_device_type t,
    void(CL_CALLBACK *f)(const char *, const void *, size_t, void *), void *u, cl_int *err) {
  cl_device_id d = &the_device;
  if (device_ids(&the_platform, t, 1, &d, 0)) FAIL(CL_DEVICE_NOT_FOUND);
  return create_context(p, 1, &d, f, u, err);
}
cl_int retain_context(cl_context c) {
  if (BAD(c)) return CL_INVALID_CONTEXT;
  __atomic_add_fetch(&c->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
cl_int release_context(cl_context c) {
  if (BAD(c)) return CL_INVALID_CONTEXT;
  if (!__atomic_sub_fetch(&c->refs, 1, __ATOMIC_SEQ_CST)) {
    c->live = 0;
    free(c->properties);
    free(c);
  }
  return 0;
}
static cl_int context_info(cl_context c, cl_context_info name, size_t size, void *value, size_t *ret) {
  if (BAD(c)) return CL_INVALID_CONTEXT;
  switch (name) {
  case CL_CONTEXT_REFERENCE_COUNT: UINT(c->refs);
  case CL_CONTEXT_NUM_DEVICES: UINT(1);
  case CL_CONTEXT_DEVICES: GIVE(cl_device_id, &the_device);
  case CL_CONTEXT_PROPERTIES: return give(size, value, ret, c->properties, c->nproperties * sizeof *c->properties);
  }
  return CL_INVALID_VALUE;
}
static cl_command_queue create_queue(cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *err) {
  if (BAD(c)) FAIL(CL_INVALID_CONTEXT);
  if (d != &the_device) FAIL(CL_INVALID_DEVICE);
  if (p & ~(cl_command_queue_properties)CL_QUEUE_PROFILING_ENABLE) FAIL(CL_INVALID_QUEUE_PROPERTIES);
  cl_command_queue q = make(sizeof *q);
  q->context = c;
  q->properties = p;
  retain_context(c);
  if (err) *err = 0;
  return q;
}
cl_int retain_queue(cl_command_queue q) {
  if (BAD(q)) return CL_INVALID_COMMAND_QUEUE;
  __atomic_add_fetch(&q->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
cl_int release_queue(cl_command_queue q) {
  if (BAD(q)) return CL_INVALID_COMMAND_QUEUE;
  if (!__atomic_sub_fetch(&q->refs, 1, __ATOMIC_SEQ_CST)) {
    q->live = 0;
    release_context(q->context);
    free(q);
  }
  return 0;
}
static cl_int queue_info(cl_command_queue q, cl_command_queue_info name, size_t size, void *value, size_t *ret) {
  if (BAD(q)) return CL_INVALID_COMMAND_QUEUE;
  switch (name) {
  case CL_QUEUE_CONTEXT: GIVE(cl_context, q->context);
  case CL_QUEUE_DEVICE: GIVE(cl_device_id, &the_device);
  case CL_QUEUE_REFERENCE_COUNT: UINT(q->refs);
  case CL_QUEUE_PROPERTIES: ULONG(q->properties);
  }
  return CL_INVALID_VALUE;
}
static cl_int set_queue_property(cl_command_queue q, cl_command_queue_properties p, cl_bool on, cl_command_queue_properties *old) {
  return CL_INVALID_OPERATION;
}

void add_queues(void) {
  T(clCreateContext, create_context);
  T(clCreateContextFromType, create_context_from_type);
  T(clRetainContext, retain_context);
  T(clReleaseContext, release_context);
  T(clGetContextInfo, context_info);
  T(clCreateCommandQueue, create_queue);
  T(clRetainCommandQueue, retain_queue);
  T(clReleaseCommandQueue, release_queue);
  T(clGetCommandQueueInfo, queue_info);
  T(clSetCommandQueueProperty, set_queue_property);
}
