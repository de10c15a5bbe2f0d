/* cudnn_path.h -- the newest libcudnn.so.9 of this machine.
 *
 * A library that the loader finds by itself is often older than the one that pip put beside a
 * Python, where the packages of PyTorch keep theirs:
 *
 *     DIR/python3 of PATH  ->  DIR/../lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9
 *                                                   nvidia_cudnn_cu13-9.19.0.56.dist-info
 */
#ifndef DEVICE_CUDA_ATTENTION_CUDNN_PATH_H
#define DEVICE_CUDA_ATTENTION_CUDNN_PATH_H

#include <stddef.h>

/* Local. The newest under the folders of `path` ("/a/bin:/b/bin", as PATH has them): its file, and
 * its version as cuDNN counts (9.19.0: 91900). 0: there is none. */
int cudnn_path_newest(const char *path, char *file, size_t bytes);
/* Local. The version that a file's name ends in, as libcudnn.so.9.14.0 does: 91400; 0: in none. */
int cudnn_path_version(const char *file);

#endif
