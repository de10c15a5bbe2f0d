/* cudnn_none.c -- stubs of a build without cudnn-frontend: no call fits, and cudnn_text states
 * why. */
#ifndef SHEAF_CUDNN
#include <stdio.h>

#include "device/cuda/attention/cudnn.h"

CudnnPlans *cudnn_open(int capability)
{
    (void)capability;
    return NULL;
}

void cudnn_search(const char *path) { (void)path; }

void cudnn_close(CudnnPlans *f) { (void)f; }

const char *cudnn_text(const CudnnPlans *f)
{
    (void)f;
    return "attention by our own kernels (built without cudnn-frontend)";
}

void cudnn_choice(const CudnnPlans *f, const Call *call, bool backward, char *out, size_t bytes)
{
    (void)f;
    (void)call;
    (void)backward;
    snprintf(out, bytes, "our own kernels (built without cudnn-frontend)");
}

bool cudnn_takes(CudnnPlans *f, const Call *call, bool backward)
{
    (void)f;
    (void)call;
    (void)backward;
    return false;
}

Err cudnn_attention(const Call *call)
{
    (void)call;
    return err_fail(ERR_CHECK, "cuda: built without cudnn-frontend");
}

Err cudnn_attention_dx(const Call *call) { return cudnn_attention(call); }

void cudnn_report(CudnnPlans *f, const Call *call, bool backward)
{
    (void)f;
    (void)call;
    (void)backward;
}
#endif
