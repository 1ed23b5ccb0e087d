/* The driver's objects, and what all its files share. */
#ifndef EMULATED_OBJECTS_H
#define EMULATED_OBJECTS_H
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <stddef.h>

/* What new memory holds: 0x7FFF in each half of a word is NaN in all types of floats, and too large for an index. */
#define POISON "0x7FFF7FFF"

/* Each object begins with the table of functions, by which the loader calls the driver. */
#define OBJECT                                                                                                                             \
  cl_icd_dispatch *dispatch;                                                                                                               \
  int live;                                                                                                                                \
  cl_uint refs
#define LIVE 0x45AD6B01
#define BAD(o) (!(o) || (o)->live != LIVE)

struct _cl_platform_id {
  cl_icd_dispatch *dispatch;
};
struct _cl_device_id {
  cl_icd_dispatch *dispatch;
};
struct _cl_context {
  OBJECT;
  cl_context_properties *properties;
  size_t nproperties;
};
struct _cl_command_queue {
  OBJECT;
  cl_context context;
  cl_command_queue_properties properties;
};
struct destructor {
  void(CL_CALLBACK *f)(cl_mem, void *);
  void *data;
  struct destructor *next;
};
/* start, total: its pages. next, previous: all buffers that are no sub-buffers. */
struct _cl_mem {
  OBJECT;
  cl_context context;
  cl_mem parent;
  cl_mem_flags flags;
  size_t size, offset, total;
  char *data;
  void *host, *start;
  cl_uint maps;
  struct destructor *destructors;
  cl_mem next, previous;
};
struct argument {
  char kind;
  size_t size;
  char name[64];
}; /* kind: g a buffer, l local memory, v a value */
struct entry {
  char name[512];
  cl_uint nargs;
  size_t local, private, max, required[3], wave;
  struct argument *args;
};
/* code: the code object, about: its kernels, in compiling.py's lines. */
struct _cl_program {
  OBJECT;
  cl_context context;
  char *source, *options, *log, *about;
  unsigned char *code;
  size_t size;
  cl_build_status status;
  cl_uint nkernels;
  struct entry *kernels;
  cl_ulong id;
  cl_uint attached;
};
struct value {
  int set;
  size_t size;
  void *data;
  cl_mem mem;
};
struct _cl_kernel {
  OBJECT;
  cl_program program;
  struct entry *entry;
  struct value *values;
};
struct callback {
  void(CL_CALLBACK *f)(cl_event, cl_int, void *);
  void *data;
  cl_int at;
  struct callback *next;
};
struct _cl_event {
  OBJECT;
  cl_context context;
  cl_command_queue queue;
  cl_command_type type;
  cl_int status;
  cl_ulong times[4];
  struct callback *callbacks;
};

extern struct _cl_platform_id the_platform;
extern struct _cl_device_id the_device;
extern cl_icd_dispatch table;

/* What Python does (callbacks.py). */
typedef int (*build_function)(const char *source, const char *options, unsigned char **code, size_t *size, char **about, char **log);
typedef int (*launch_function)(cl_ulong id, const unsigned char *code, size_t size, const char *name, const cl_ulong *grid,
    const cl_ulong *group, const cl_ulong *offset, cl_uint nargs, const char *kinds, void **values, const cl_ulong *sizes);
typedef void (*drop_function)(cl_ulong id);
extern build_function build_callback;
extern launch_function launch_callback;
extern drop_function drop_callback;

void *make(size_t size); /* an object of that size with one reference */
cl_ulong now(void);      /* nanoseconds */
const char *setting(const char *name, const char *otherwise);
const char *architecture(void);
cl_ulong memory(void); /* bytes of the device */
cl_int give(size_t size, void *value, size_t *ret, const void *from, size_t n);
cl_int text(size_t size, void *value, size_t *ret, const char *s);
cl_int device_ids(cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *out, cl_uint *count);
cl_int retain_context(cl_context c);
cl_int release_context(cl_context c);
cl_int retain_program(cl_program p);
cl_int release_program(cl_program p);
cl_int retain_queue(cl_command_queue q);
cl_int release_queue(cl_command_queue q);
cl_int waiting(cl_uint n, const cl_event *list); /* 0 when the events are complete */
void tell(cl_command_queue q, cl_command_type type, cl_ulong begin, cl_event *out);

/* Each file's functions, put into the table. */
void add_platform(void);
void add_queues(void);
void add_events(void);
void add_buffers(void);
void add_programs(void);
void add_kernels(void);
#define T(name, f) table.name = (void *)f

#define FAIL(code)                                                                                                                         \
  do {                                                                                                                                     \
    if (err) *err = (code);                                                                                                                \
    return NULL;                                                                                                                           \
  } while (0)
#define GIVE(type, what)                                                                                                                   \
  do {                                                                                                                                     \
    type v_ = (what);                                                                                                                      \
    return give(size, value, ret, &v_, sizeof v_);                                                                                         \
  } while (0)
#define UINT(what) GIVE(cl_uint, what)
#define ULONG(what) GIVE(cl_ulong, what)
#define SIZE(what) GIVE(size_t, what)
/* A command's beginning and end: all are done when they are enqueued. */
#define BEGIN                                                                                                                              \
  if (BAD(q)) return CL_INVALID_COMMAND_QUEUE;                                                                                             \
  {                                                                                                                                        \
    cl_int w_ = waiting(nwait, wait);                                                                                                      \
    if (w_) return w_;                                                                                                                     \
  }                                                                                                                                        \
  cl_ulong begin = now()
#define END(type)                                                                                                                          \
  do {                                                                                                                                     \
    tell(q, type, begin, event);                                                                                                           \
    return CL_SUCCESS;                                                                                                                     \
  } while (0)

#endif
