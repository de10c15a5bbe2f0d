/* cudnn_path.h -- finds the newest libcudnn.so.9 of this machine.
 *
 * The loader often finds an older library than pip has installed for a Python; PyTorch's packages
 * are there:
 *
 *     DIR/python3 of PATH  ->  DIR/../lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9
 *                                                   nvidia_cudnn_cu13-9.19.0.56.dist-info */
#ifndef DEVICE_CUDA_ATTENTION_CUDNN_PATH_H
#define DEVICE_CUDA_ATTENTION_CUDNN_PATH_H

#include <stddef.h>

/* Local. Finds the newest cuDNN under the folders of `path` ("/a/bin:/b/bin", as in PATH): writes
 * its file, returns its version in cuDNN's count (9.19.0: 91900). 0: there is none. */
int cudnn_path_newest(const char *path, char *file, size_t bytes);
/* Local. The version at the end of a file name: 91400 of libcudnn.so.9.14.0; 0: it has none. */
int cudnn_path_version(const char *file);

#endif
