/* Kernels, their arguments and launches, which Python executes (launching.py). */
#include "objects.h"
#include <stdlib.h>
#include <string.h>

static cl_kernel kernel_of(cl_program p, struct entry *e) {
  cl_kernel k = make(sizeof *k);
  k->program = p;
  retain_program(p);
  k->entry = e;
  k->values = calloc(e->nargs + 1, sizeof *k->values);
  p->attached++;
  return k;
}
static cl_kernel create_kernel(cl_program p, const char *name, cl_int *err) {
  if (BAD(p)) FAIL(CL_INVALID_PROGRAM);
  if (p->status != CL_BUILD_SUCCESS) FAIL(CL_INVALID_PROGRAM_EXECUTABLE);
  if (!name) FAIL(CL_INVALID_VALUE);
  for (cl_uint k = 0; k < p->nkernels; k++)
    if (!strcmp(p->kernels[k].name, name)) {
      if (err) *err = 0;
      return kernel_of(p, p->kernels + k);
    }
  FAIL(CL_INVALID_KERNEL_NAME);
}
static cl_int create_kernels(cl_program p, cl_uint n, cl_kernel *out, cl_uint *count) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  if (p->status != CL_BUILD_SUCCESS) return CL_INVALID_PROGRAM_EXECUTABLE;
  if (out && n < p->nkernels) return CL_INVALID_VALUE;
  if (count) *count = p->nkernels;
  if (out)
    for (cl_uint k = 0; k < p->nkernels; k++) out[k] = kernel_of(p, p->kernels + k);
  return 0;
}
static cl_int retain_kernel(cl_kernel k) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  __atomic_add_fetch(&k->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static cl_int release_kernel(cl_kernel k) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  if (!__atomic_sub_fetch(&k->refs, 1, __ATOMIC_SEQ_CST)) {
    for (cl_uint a = 0; a < k->entry->nargs; a++) free(k->values[a].data);
    free(k->values);
    k->live = 0;
    k->program->attached--;
    release_program(k->program);
    free(k);
  }
  return 0;
}
static cl_int set_arg(cl_kernel k, cl_uint i, size_t size, const void *value) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  if (i >= k->entry->nargs) return CL_INVALID_ARG_INDEX;
  struct argument *a = k->entry->args + i;
  struct value *v = k->values + i;
  if (a->kind == 'l') {
    if (value) return CL_INVALID_ARG_VALUE;
    if (!size) return CL_INVALID_ARG_SIZE;
    v->size = size;
    v->set = 1;
    return 0;
  }
  if (a->kind == 'g') {
    if (size != sizeof(cl_mem)) return CL_INVALID_ARG_SIZE;
    cl_mem m = value ? *(cl_mem *)value : 0;
    if (m && BAD(m)) return CL_INVALID_MEM_OBJECT;
    v->mem = m;
    v->set = 1;
    return 0;
  }
  if (!value) return CL_INVALID_ARG_VALUE;
  if (size != a->size) return CL_INVALID_ARG_SIZE;
  v->data = realloc(v->data, size);
  memcpy(v->data, value, size);
  v->size = size;
  v->set = 1;
  return 0;
}
static cl_int kernel_info(cl_kernel k, cl_kernel_info name, size_t size, void *value, size_t *ret) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  switch (name) {
  case CL_KERNEL_FUNCTION_NAME: return text(size, value, ret, k->entry->name);
  case CL_KERNEL_NUM_ARGS: UINT(k->entry->nargs);
  case CL_KERNEL_REFERENCE_COUNT: UINT(k->refs);
  case CL_KERNEL_CONTEXT: GIVE(cl_context, k->program->context);
  case CL_KERNEL_PROGRAM: GIVE(cl_program, k->program);
  case CL_KERNEL_ATTRIBUTES: return text(size, value, ret, "");
  }
  return CL_INVALID_VALUE;
}
static cl_int group_info(cl_kernel k, cl_device_id d, cl_kernel_work_group_info name, size_t size, void *value, size_t *ret) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  switch (name) {
  case CL_KERNEL_WORK_GROUP_SIZE: SIZE(k->entry->max);
  case CL_KERNEL_COMPILE_WORK_GROUP_SIZE: return give(size, value, ret, k->entry->required, 24);
  case CL_KERNEL_LOCAL_MEM_SIZE: {
    cl_ulong n = k->entry->local;
    for (cl_uint a = 0; a < k->entry->nargs; a++)
      if (k->entry->args[a].kind == 'l') n += k->values[a].size;
    ULONG(n);
  }
  case CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE: SIZE(k->entry->wave);
  case CL_KERNEL_PRIVATE_MEM_SIZE: ULONG(k->entry->private);
  }
  return CL_INVALID_VALUE;
}
static cl_int arg_info(cl_kernel k, cl_uint i, cl_kernel_arg_info name, size_t size, void *value, size_t *ret) {
  if (BAD(k)) return CL_INVALID_KERNEL;
  return CL_KERNEL_ARG_INFO_NOT_AVAILABLE;
}
static cl_int launch(cl_command_queue q, cl_kernel k, cl_uint dim, const size_t *offset, const size_t *grid, const size_t *group,
    cl_uint nwait, const cl_event *wait, cl_event *event) {
  if (BAD(q)) return CL_INVALID_COMMAND_QUEUE;
  if (BAD(k)) return CL_INVALID_KERNEL;
  if (dim < 1 || dim > 3) return CL_INVALID_WORK_DIMENSION;
  struct entry *e = k->entry;
  cl_ulong g[3] = {1, 1, 1}, l[3] = {1, 1, 1}, o[3] = {0, 0, 0}, local = e->local;
  for (cl_uint a = 0; a < e->nargs; a++) {
    if (!k->values[a].set) return CL_INVALID_KERNEL_ARGS;
    if (e->args[a].kind == 'l') local += k->values[a].size;
  }
  if (local > 65536) return CL_OUT_OF_RESOURCES;
  for (cl_uint d = 0; d < dim; d++) {
    if (!grid || !grid[d]) return CL_INVALID_GLOBAL_WORK_SIZE;
    g[d] = grid[d];
    if (offset) o[d] = offset[d];
  }
  int required = e->required[0] != 0;
  if (group) {
    for (cl_uint d = 0; d < dim; d++) l[d] = group[d];
  } else if (required)
    for (int d = 0; d < 3; d++) l[d] = e->required[d];
  else {
    cl_ulong left = e->max < 256 ? e->max : 256;
    for (cl_uint d = 0; d < dim; d++) {
      cl_ulong n = left < g[d] ? left : g[d];
      while (n > 1 && g[d] % n) n--;
      l[d] = n ? n : 1;
      left /= l[d];
    }
  }
  if (!l[0] || !l[1] || !l[2] || l[0] * l[1] * l[2] > e->max) return CL_INVALID_WORK_GROUP_SIZE;
  for (int d = 0; d < 3; d++) {
    if (l[d] > 1024) return CL_INVALID_WORK_ITEM_SIZE;
    if (g[d] % l[d] || (required && l[d] != e->required[d])) return CL_INVALID_WORK_GROUP_SIZE;
    if (g[d] >> 32) return CL_INVALID_GLOBAL_WORK_SIZE;
  }
  {
    cl_int w = waiting(nwait, wait);
    if (w) return w;
  }
  if (!launch_callback) return CL_OUT_OF_RESOURCES;
  cl_ulong begin = now();
  char *kinds = calloc(1, e->nargs + 1);
  void **values = calloc(e->nargs + 1, sizeof *values);
  cl_ulong *sizes = calloc(e->nargs + 1, sizeof *sizes);
  for (cl_uint a = 0; a < e->nargs; a++) {
    struct value *v = k->values + a;
    kinds[a] = e->args[a].kind;
    values[a] = kinds[a] == 'g' ? (v->mem ? v->mem->data : 0) : v->data;
    sizes[a] = kinds[a] == 'g' ? (v->mem ? v->mem->size : 0) : v->size;
  }
  int rc = launch_callback(k->program->id, k->program->code, k->program->size, e->name, g, l, o, e->nargs, kinds, values, sizes);
  free(kinds);
  free(values);
  free(sizes);
  if (rc) return CL_OUT_OF_RESOURCES;
  tell(q, CL_COMMAND_NDRANGE_KERNEL, begin, event);
  return 0;
}
static cl_int task(cl_command_queue q, cl_kernel k, cl_uint nwait, const cl_event *wait, cl_event *event) {
  size_t one = 1;
  return launch(q, k, 1, 0, &one, &one, nwait, wait, event);
}

void add_kernels(void) {
  T(clCreateKernel, create_kernel);
  T(clCreateKernelsInProgram, create_kernels);
  T(clRetainKernel, retain_kernel);
  T(clReleaseKernel, release_kernel);
  T(clSetKernelArg, set_arg);
  T(clGetKernelInfo, kernel_info);
  T(clGetKernelWorkGroupInfo, group_info);
  T(clGetKernelArgInfo, arg_info);
  T(clEnqueueNDRangeKernel, launch);
  T(clEnqueueTask, task);
}
