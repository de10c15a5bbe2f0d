/* cudnn_none.c -- a build without cudnn-frontend: no call fits, and the text of the device says so. */
#ifndef SHEAF_CUDNN
#include "device/cuda/attention/cudnn.h"

FusedPlans *fused_open(int capability)
{
    (void)capability;
    return NULL;
}

void fused_close(FusedPlans *f) { (void)f; }

const char *fused_text(const FusedPlans *f)
{
    (void)f;
    return "attention by our own kernels (built without cudnn-frontend)";
}

bool fused_attention(const Call *call, Err *err)
{
    (void)call;
    (void)err;
    return false;
}

bool fused_attention_dx(const Call *call, Err *err)
{
    (void)call;
    (void)err;
    return false;
}
#endif
