/* Programs: Python compiles them (compiling.py), and binaries hold a code object. */
#include "objects.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cl_ulong next_id;
static cl_program create_with_source(cl_context c, cl_uint n, const char **s, const size_t *lengths, cl_int *err) {
  if (BAD(c)) FAIL(CL_INVALID_CONTEXT);
  if (!n || !s) FAIL(CL_INVALID_VALUE);
  size_t total = 0;
  for (cl_uint k = 0; k < n; k++) total += lengths && lengths[k] ? lengths[k] : strlen(s[k]);
  cl_program p = make(sizeof *p);
  p->context = c;
  retain_context(c);
  p->source = malloc(total + 1);
  p->id = __atomic_add_fetch(&next_id, 1, __ATOMIC_SEQ_CST);
  p->status = CL_BUILD_NONE;
  total = 0;
  for (cl_uint k = 0; k < n; k++) {
    size_t m = lengths && lengths[k] ? lengths[k] : strlen(s[k]);
    memcpy(p->source + total, s[k], m);
    total += m;
  }
  p->source[total] = 0;
  if (err) *err = 0;
  return p;
}
/* What Python tells of kernels: lines "K name arguments local private most x y z wave" and after each of them its arguments, "A kind size
 * name". */
static void understand(cl_program p) {
  for (cl_uint k = 0; k < p->nkernels; k++) free(p->kernels[k].args);
  free(p->kernels);
  p->kernels = 0;
  p->nkernels = 0;
  struct entry *e = 0;
  cl_uint a = 0;
  for (char *s = p->about; s && *s; s = strchr(s, '\n') ? strchr(s, '\n') + 1 : 0) {
    if (*s == 'K') {
      p->kernels = realloc(p->kernels, (p->nkernels + 1) * sizeof *p->kernels);
      e = p->kernels + p->nkernels++;
      memset(e, 0, sizeof *e);
      sscanf(s, "K %511s %u %zu %zu %zu %zu %zu %zu %zu", e->name, &e->nargs, &e->local, &e->private, &e->max, e->required, e->required + 1,
          e->required + 2, &e->wave);
      e->args = calloc(e->nargs + 1, sizeof *e->args);
      a = 0;
    } else if (*s == 'A' && e && a < e->nargs) {
      sscanf(s, "A %c %zu %63s", &e->args[a].kind, &e->args[a].size, e->args[a].name);
      a++;
    }
  }
}
static const char MAGIC[] = "emulated AMD 1\n";
static cl_program create_with_binary(
    cl_context c, cl_uint n, const cl_device_id *d, const size_t *lengths, const unsigned char **b, cl_int *status, cl_int *err) {
  if (BAD(c)) FAIL(CL_INVALID_CONTEXT);
  if (n != 1 || !d || !lengths || !b || !b[0] || !lengths[0]) FAIL(CL_INVALID_VALUE);
  char name[64] = "";
  unsigned long long na = 0, nc = 0;
  if (lengths[0] < 96 || memcmp(b[0], MAGIC, sizeof MAGIC - 1) ||
      sscanf((const char *)b[0] + sizeof MAGIC - 1, "%63s %llu %llu", name, &na, &nc) != 3 || strcmp(name, architecture()) ||
      96 + na + nc != lengths[0]) {
    if (status) *status = CL_INVALID_BINARY;
    FAIL(CL_INVALID_BINARY);
  }
  cl_program p = make(sizeof *p);
  p->context = c;
  retain_context(c);
  p->id = __atomic_add_fetch(&next_id, 1, __ATOMIC_SEQ_CST);
  p->status = CL_BUILD_NONE;
  p->about = malloc(na + 1);
  memcpy(p->about, b[0] + 96, na);
  p->about[na] = 0;
  p->code = malloc(nc);
  memcpy(p->code, b[0] + 96 + na, nc);
  p->size = nc;
  if (status) *status = 0;
  if (err) *err = 0;
  return p;
}
cl_int retain_program(cl_program p) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  __atomic_add_fetch(&p->refs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
cl_int release_program(cl_program p) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  if (!__atomic_sub_fetch(&p->refs, 1, __ATOMIC_SEQ_CST)) {
    if (drop_callback) drop_callback(p->id);
    for (cl_uint k = 0; k < p->nkernels; k++) free(p->kernels[k].args);
    free(p->kernels);
    free(p->source);
    free(p->options);
    free(p->log);
    free(p->about);
    free(p->code);
    release_context(p->context);
    p->live = 0;
    free(p);
  }
  return 0;
}
static cl_int build_program(
    cl_program p, cl_uint n, const cl_device_id *d, const char *options, void(CL_CALLBACK *f)(cl_program, void *), void *u) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  if (p->attached) return CL_INVALID_OPERATION;
  free(p->options);
  p->options = strdup(options ? options : "");
  free(p->log);
  p->log = 0;
  int rc = 0;
  if (p->source) {
    free(p->code);
    free(p->about);
    p->code = 0;
    p->about = 0;
    p->size = 0;
    if (!build_callback) {
      rc = 1;
      p->log = strdup(
          "the emulated device compiles and executes only in programs that run.py starts: no callbacks are registered in this process");
    } else
      rc = build_callback(p->source, p->options, &p->code, &p->size, &p->about, &p->log);
  }
  p->status = rc ? CL_BUILD_ERROR : CL_BUILD_SUCCESS;
  if (!rc) understand(p);
  if (f) f(p, u);
  return rc ? CL_BUILD_PROGRAM_FAILURE : CL_SUCCESS;
}
static cl_int unload(void) { return 0; }
static cl_int unload_platform(cl_platform_id p) { return 0; }
static cl_int program_info(cl_program p, cl_program_info name, size_t size, void *value, size_t *ret) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  size_t na = p->about ? strlen(p->about) : 0, total = p->code ? 96 + na + p->size : 0;
  switch (name) {
  case CL_PROGRAM_REFERENCE_COUNT: UINT(p->refs);
  case CL_PROGRAM_CONTEXT: GIVE(cl_context, p->context);
  case CL_PROGRAM_NUM_DEVICES: UINT(1);
  case CL_PROGRAM_DEVICES: GIVE(cl_device_id, &the_device);
  case CL_PROGRAM_SOURCE: return text(size, value, ret, p->source ? p->source : "");
  case CL_PROGRAM_BINARY_SIZES: SIZE(total);
  case CL_PROGRAM_BINARIES:
    if (ret) *ret = sizeof(void *);
    if (value) {
      if (size < sizeof(void *)) return CL_INVALID_VALUE;
      unsigned char *to = *(unsigned char **)value;
      if (to && total) {
        memset(to, 0, 96);
        snprintf((char *)to, 96, "%s%s %zu %zu\n", MAGIC, architecture(), na, p->size);
        memcpy(to + 96, p->about, na);
        memcpy(to + 96 + na, p->code, p->size);
      }
    }
    return 0;
  case CL_PROGRAM_NUM_KERNELS:
    if (p->status != CL_BUILD_SUCCESS) return CL_INVALID_PROGRAM_EXECUTABLE;
    SIZE(p->nkernels);
  case CL_PROGRAM_KERNEL_NAMES: {
    if (p->status != CL_BUILD_SUCCESS) return CL_INVALID_PROGRAM_EXECUTABLE;
    size_t n = 1;
    for (cl_uint k = 0; k < p->nkernels; k++) n += strlen(p->kernels[k].name) + 1;
    char *s = calloc(1, n + 1);
    for (cl_uint k = 0; k < p->nkernels; k++) {
      if (k) strcat(s, ";");
      strcat(s, p->kernels[k].name);
    }
    cl_int rc = text(size, value, ret, s);
    free(s);
    return rc;
  }
  }
  return CL_INVALID_VALUE;
}
static cl_int build_info(cl_program p, cl_device_id d, cl_program_build_info name, size_t size, void *value, size_t *ret) {
  if (BAD(p)) return CL_INVALID_PROGRAM;
  switch (name) {
  case CL_PROGRAM_BUILD_STATUS: GIVE(cl_int, p->status);
  case CL_PROGRAM_BUILD_OPTIONS: return text(size, value, ret, p->options ? p->options : "");
  case CL_PROGRAM_BUILD_LOG: return text(size, value, ret, p->log ? p->log : "");
  case CL_PROGRAM_BINARY_TYPE: UINT(p->code ? CL_PROGRAM_BINARY_TYPE_EXECUTABLE : CL_PROGRAM_BINARY_TYPE_NONE);
  }
  return CL_INVALID_VALUE;
}

void add_programs(void) {
  T(clCreateProgramWithSource, create_with_source);
  T(clCreateProgramWithBinary, create_with_binary);
  T(clRetainProgram, retain_program);
  T(clReleaseProgram, release_program);
  T(clBuildProgram, build_program);
  T(clUnloadCompiler, unload);
  T(clUnloadPlatformCompiler, unload_platform);
  T(clGetProgramInfo, program_info);
  T(clGetProgramBuildInfo, build_info);
}
