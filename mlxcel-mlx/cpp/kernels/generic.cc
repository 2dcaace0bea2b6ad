#include "instance_begin.h"

#define MLXCEL_ISA generic
#define MLXCEL_ISA_NAME "generic"
#include "simd_generic.h"
#include "instance.h"
