/* data.c -- `sheaf data`: which of build, show and check, and how they are called. */
#include "cli/data.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "cli/verbs.h"

static const char *const usage =
    "sheaf data build IN... -o OUT    text and JSONL files to a token file\n"
    "    --tokenizer bytes            a vocabulary of 256, a token a byte (the default)\n"
    "    --tokenizer FILE             a tokenizer.json: byte-level BPE as of GPT-2, Llama 3, Qwen\n"
    "    --format tokens              llm.c's format (the default): a token starts each document;\n"
    "                                 bytes have none to spare, and documents are joined\n"
    "    --format megatron            OUT.bin and OUT.idx; keeps the borders of documents\n"
    "    --from auto|text|jsonl       what IN is; auto: by its name. A text is one document,\n"
    "                                 each line of JSONL is one, its field \"text\"\n"
    "    --eot TOKEN|none             the token between documents: before each in the format\n"
    "                                 tokens, after each in megatron; by itself <|endoftext|>,\n"
    "                                 <|end_of_text|> or </s>, and none where the tokenizer\n"
    "                                 starts each text with a token of its own\n"
    "    --threads N                  to tokenize with; the result is the same\n"
    "sheaf data show FILE...          what a data file is, its tokens, documents and first tokens\n"
    "    --tokenizer FILE             shows the text of the first tokens\n"
    "sheaf data check FILE...         read all of it; status 1 when something is wrong\n"
    "    --vocab N                    ids must be below N\n"
    "    --format F                   (show, check) auto, text, jsonl, tokens, megatron, uint16 "
    "or\n"
    "                                 uint32, as data.format";

int verb_data(int argc, char **argv)
{
    static const char *const names[] = {"build", "show", "check"};
    int (*const run[])(int, char **) = {data_build, data_show, data_check};
    const char *word = argc > 1 ? argv[1] : "";
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0) return run[i](argc - 1, argv + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        puts(usage);
        return 0;
    }
    const char *nearest = text_nearest(word, names, 3);
    return cli_fail(err_fail(ERR_CONFIG,
                             "data: %.80s%swants build, show or check%s%s%s; `sheaf data --help` "
                             "says how",
                             word, *word ? ": " : "", nearest ? " (did you mean " : "",
                             nearest ? nearest : "", nearest ? "?)" : ""));
}
