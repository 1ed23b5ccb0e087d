/* The platform, its one device, and what they say of themselves: OpenCL 1.2 on a GPU of AMD. */
#include "objects.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void *make(size_t size) {
  struct _cl_context *o = calloc(1, size);
  o->dispatch = &table;
  o->live = LIVE;
  o->refs = 1;
  return o;
}
cl_ulong now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
cl_int give(size_t size, void *value, size_t *ret, const void *from, size_t n) {
  if (ret) *ret = n;
  if (value) {
    if (size < n) return CL_INVALID_VALUE;
    memcpy(value, from, n);
  }
  return CL_SUCCESS;
}
cl_int text(size_t size, void *value, size_t *ret, const char *s) { return give(size, value, ret, s, strlen(s) + 1); }

const char *setting(const char *name, const char *otherwise) {
  const char *s = getenv(name);
  return s && *s ? s : otherwise;
}
const char *architecture(void) { return setting("EMULATED_DEVICE", "gfx1100"); }
static int cdna(void) { return strlen(architecture()) <= 6; }
static cl_uint units(void) {
  const char *a = architecture();
  return !strcmp(a, "gfx1100") ? 48 : !strcmp(a, "gfx1201") ? 32 : !strcmp(a, "gfx942") ? 304 : !strcmp(a, "gfx90a") ? 104 : 32;
}
static size_t max_group(void) { return strtoul(setting("EMULATED_MAX_GROUP", "256"), 0, 0); }
cl_ulong memory(void) { return strtoull(setting("EMULATED_MEMORY", "2147483648"), 0, 0); }

static cl_int platform_info(cl_platform_id p, cl_platform_info name, size_t size, void *value, size_t *ret) {
  switch (name) {
  case CL_PLATFORM_PROFILE: return text(size, value, ret, "FULL_PROFILE");
  case CL_PLATFORM_VERSION: return text(size, value, ret, "OpenCL 1.2 emulated AMD");
  case CL_PLATFORM_NAME: return text(size, value, ret, "Emulated AMD Accelerated Parallel Processing");
  case CL_PLATFORM_VENDOR: return text(size, value, ret, "Advanced Micro Devices, Inc.");
  case CL_PLATFORM_EXTENSIONS: return text(size, value, ret, "cl_khr_icd cl_amd_event_callback");
  case CL_PLATFORM_ICD_SUFFIX_KHR: return text(size, value, ret, "AMD");
  }
  return CL_INVALID_VALUE;
}
cl_int device_ids(cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id *out, cl_uint *count) {
  if (!(type & CL_DEVICE_TYPE_GPU) && type != CL_DEVICE_TYPE_ALL && !(type & CL_DEVICE_TYPE_DEFAULT)) return CL_DEVICE_NOT_FOUND;
  if (count) *count = 1;
  if (out && n) out[0] = &the_device;
  return CL_SUCCESS;
}
static const char *extensions(void) {
  return "cl_khr_fp64 cl_khr_global_int32_base_atomics cl_khr_global_int32_extended_atomics cl_khr_local_int32_base_atomics "
         "cl_khr_local_int32_extended_atomics cl_khr_int64_base_atomics cl_khr_int64_extended_atomics cl_khr_3d_image_writes "
         "cl_khr_byte_addressable_store cl_khr_fp16 cl_khr_gl_sharing cl_amd_device_attribute_query cl_amd_media_ops cl_amd_media_ops2 "
         "cl_khr_image2d_from_buffer cl_khr_subgroups cl_khr_depth_images cl_amd_copy_buffer_p2p cl_amd_assembly_program";
}
static cl_int device_info(cl_device_id d, cl_device_info name, size_t size, void *value, size_t *ret) {
  switch (name) {
  case CL_DEVICE_TYPE: ULONG(CL_DEVICE_TYPE_GPU);
  case CL_DEVICE_VENDOR_ID: UINT(0x1002);
  case CL_DEVICE_MAX_COMPUTE_UNITS: UINT(units());
  case CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS: UINT(3);
  case CL_DEVICE_MAX_WORK_ITEM_SIZES: {
    size_t s[3] = {1024, 1024, 1024};
    return give(size, value, ret, s, sizeof s);
  }
  case CL_DEVICE_MAX_WORK_GROUP_SIZE:
  case 0x4033: SIZE(max_group()); /* preferred of AMD's */
  case 0x4030: SIZE(1024);        /* CL_DEVICE_MAX_WORK_GROUP_SIZE_AMD */
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_CHAR: UINT(4);
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_SHORT:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_SHORT: UINT(2);
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_HALF:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF: UINT(1);
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_INT:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_INT:
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_LONG:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_LONG:
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT:
  case CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE:
  case CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE: UINT(1);
  case CL_DEVICE_MAX_CLOCK_FREQUENCY: UINT(2500);
  case CL_DEVICE_ADDRESS_BITS: UINT(64);
  case CL_DEVICE_MAX_MEM_ALLOC_SIZE: ULONG(memory() / 100 * 85);
  case CL_DEVICE_IMAGE_SUPPORT: UINT(CL_FALSE);
  case CL_DEVICE_MAX_READ_IMAGE_ARGS:
  case CL_DEVICE_MAX_WRITE_IMAGE_ARGS:
  case CL_DEVICE_MAX_SAMPLERS: UINT(0);
  case CL_DEVICE_IMAGE2D_MAX_WIDTH:
  case CL_DEVICE_IMAGE2D_MAX_HEIGHT:
  case CL_DEVICE_IMAGE3D_MAX_WIDTH:
  case CL_DEVICE_IMAGE3D_MAX_HEIGHT:
  case CL_DEVICE_IMAGE3D_MAX_DEPTH:
  case CL_DEVICE_IMAGE_MAX_BUFFER_SIZE:
  case CL_DEVICE_IMAGE_MAX_ARRAY_SIZE: SIZE(0);
  case CL_DEVICE_MAX_PARAMETER_SIZE: SIZE(1024);
  case CL_DEVICE_MEM_BASE_ADDR_ALIGN: UINT(1024);
  case CL_DEVICE_MIN_DATA_TYPE_ALIGN_SIZE: UINT(128);
  case CL_DEVICE_SINGLE_FP_CONFIG:
    ULONG(CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_ROUND_TO_ZERO | CL_FP_ROUND_TO_INF | CL_FP_FMA |
          CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT);
  case CL_DEVICE_DOUBLE_FP_CONFIG:
  case CL_DEVICE_HALF_FP_CONFIG:
    ULONG(CL_FP_DENORM | CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST | CL_FP_ROUND_TO_ZERO | CL_FP_ROUND_TO_INF | CL_FP_FMA);
  case CL_DEVICE_GLOBAL_MEM_CACHE_TYPE: UINT(CL_READ_WRITE_CACHE);
  case CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE: UINT(64);
  case CL_DEVICE_GLOBAL_MEM_CACHE_SIZE: ULONG(32768);
  case CL_DEVICE_GLOBAL_MEM_SIZE: ULONG(memory());
  case CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE: ULONG(memory() / 100 * 85);
  case CL_DEVICE_MAX_CONSTANT_ARGS: UINT(8);
  case CL_DEVICE_LOCAL_MEM_TYPE: UINT(CL_LOCAL);
  case CL_DEVICE_LOCAL_MEM_SIZE: ULONG(65536);
  case CL_DEVICE_ERROR_CORRECTION_SUPPORT:
  case CL_DEVICE_HOST_UNIFIED_MEMORY: UINT(CL_FALSE);
  case CL_DEVICE_PROFILING_TIMER_RESOLUTION: SIZE(1);
  case CL_DEVICE_ENDIAN_LITTLE:
  case CL_DEVICE_AVAILABLE:
  case CL_DEVICE_COMPILER_AVAILABLE:
  case CL_DEVICE_LINKER_AVAILABLE: UINT(CL_TRUE);
  case CL_DEVICE_EXECUTION_CAPABILITIES: ULONG(CL_EXEC_KERNEL);
  case CL_DEVICE_QUEUE_PROPERTIES: ULONG(CL_QUEUE_PROFILING_ENABLE);
  case CL_DEVICE_NAME: {
    char s[64];
    snprintf(s, sizeof s, "%s%s", architecture(), cdna() ? ":sramecc+:xnack-" : "");
    return text(size, value, ret, s);
  }
  case CL_DEVICE_VENDOR: return text(size, value, ret, "Advanced Micro Devices, Inc.");
  case CL_DRIVER_VERSION: return text(size, value, ret, "3614.0 (HSA1.1,LC) emulated");
  case CL_DEVICE_PROFILE: return text(size, value, ret, "FULL_PROFILE");
  case CL_DEVICE_VERSION: return text(size, value, ret, "OpenCL 1.2 ");
  case CL_DEVICE_OPENCL_C_VERSION: return text(size, value, ret, "OpenCL C 1.2 ");
  case CL_DEVICE_EXTENSIONS: return text(size, value, ret, extensions());
  case CL_DEVICE_PLATFORM: GIVE(cl_platform_id, &the_platform);
  case CL_DEVICE_BUILT_IN_KERNELS: return text(size, value, ret, "");
  case CL_DEVICE_PRINTF_BUFFER_SIZE: SIZE(4 << 20);
  case CL_DEVICE_PREFERRED_INTEROP_USER_SYNC: UINT(CL_TRUE);
  case CL_DEVICE_PARENT_DEVICE: GIVE(cl_device_id, NULL);
  case CL_DEVICE_PARTITION_MAX_SUB_DEVICES: UINT(0);
  case CL_DEVICE_PARTITION_PROPERTIES: {
    cl_device_partition_property p = 0;
    return give(size, value, ret, &p, sizeof p);
  }
  case CL_DEVICE_PARTITION_AFFINITY_DOMAIN: ULONG(0);
  case CL_DEVICE_PARTITION_TYPE: return give(size, value, ret, "", 0);
  case CL_DEVICE_REFERENCE_COUNT: UINT(1);
  /* cl_amd_device_attribute_query */
  case 0x4036: ULONG(1); /* timer offset */
  case 0x4037: {
    cl_char p[24] = {0};
    cl_uint one = 1;
    memcpy(p, &one, 4);
    p[21] = 3;
    return give(size, value, ret, p, sizeof p);
  } /* topology */
  case 0x4038: return text(size, value, ret, cdna() ? "Emulated AMD Instinct" : "Emulated AMD Radeon");
  case 0x4039: {
    size_t s[2] = {memory() / 1024, memory() / 1024};
    return give(size, value, ret, s, sizeof s);
  }
  case 0x4040: UINT(4);                /* SIMDs of a compute unit */
  case 0x4041: UINT(cdna() ? 16 : 32); /* their width */
  case 0x4042: UINT(1);
  case 0x4043: UINT(cdna() ? 64 : 32); /* wavefront */
  case 0x4044: UINT(16);
  case 0x4045: UINT(4);
  case 0x4046: UINT(256);
  case 0x4047: UINT(65536);
  case 0x4048: UINT(32);
  case 0x4049: UINT(1);
  case 0x404A: UINT(atoi(architecture() + 3) / (100));
  case 0x404B: UINT(0);
  case 0x404C: UINT(8);
  case 0x4031: UINT(256);
  case 0x4032: UINT(1);
  }
  return CL_INVALID_VALUE;
}

static cl_int sub_devices(cl_device_id d, const cl_device_partition_property *p, cl_uint n, cl_device_id *out, cl_uint *count) {
  return CL_INVALID_VALUE;
}
static cl_int ok_device(cl_device_id d) { return 0; }
static cl_int image_formats(cl_context c, cl_mem_flags f, cl_mem_object_type t, cl_uint n, cl_image_format *out, cl_uint *count) {
  if (count) *count = 0;
  return 0;
}
static cl_mem no_image(cl_context c, cl_mem_flags f, const cl_image_format *i, const cl_image_desc *d, void *h, cl_int *err) {
  FAIL(CL_INVALID_OPERATION);
}

void add_platform(void) {
  T(clGetPlatformInfo, platform_info);
  T(clGetDeviceIDs, device_ids);
  T(clGetDeviceInfo, device_info);
  T(clGetSupportedImageFormats, image_formats);
  T(clCreateImage, no_image);
  T(clCreateSubDevices, sub_devices);
  T(clRetainDevice, ok_device);
  T(clReleaseDevice, ok_device);
}
