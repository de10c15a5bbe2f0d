"""Hard texts for tokenizers, from a seed, and vocabularies that the official library trains on them."""
import json
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
ODD = r"[\p{Lu}\p{Lt}]?\p{Ll}+|\p{Lo}{2}|[^\P{M}]+|\d{2,}|[\r\n]++|(?i:ab?c)(?=\s|$x|\S)".replace("$x|", "")

WORDS = """the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
you were all her she there would their we him been has when who will no more if out so what up said its about than into them can
only other time new some could these two may first then do any like my now over such our man me even most made after also did
many before must through years where much your way down should because long each just state those people too mr how little good
it's don't I'm we've they'll he'd you're O'Neil rock'n'roll naïve café Übergröße straße œuvre""".split()
SPACES = [" ", "  ", "    ", " " * 9, " " * 40, "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "  \n  ", "\u00a0", "\u2003",
          "\u3000", "\u2028", "\u0085", "\u1680", "\u180e", "\u200b", "\x0b", "\x0c", "\x1c", " \u00a0 ", "\n\n\n\n\t"]
ENDINGS = ["'s", "'S", "'t", "'RE", "'ve", "'Ll", "'m", "'d", "'D", "'\u017f", "'\u212a", "\u2019s", "'x", "''s", "'", " 's", "'re's"]
EMOJI = ["👨‍👩‍👧‍👦", "👩🏽‍💻", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☺", "🧑🏿‍🤝‍🧑🏻", "1️⃣", "🫠", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "👍🏻", "\u200d", "\ufe0f"]
MARKS = [chr(c) for c in (*range(0x300, 0x370), 0x5B0, 0x5B7, 0x64B, 0x651, 0x93C, 0x94D, 0x9BE, 0x9D7, 0xBD7, 0xE38, 0xF71, 0xF74,
                          0xF80, 0x1AB0, 0x1ABF, 0x1DC4, 0x20D0, 0x302A, 0x3099, 0x309A, 0xA66F, 0xFE20, 0x10A0F, 0x11127, 0x1133B,
                          0x11930, 0x1D165, 0x1E130, 0x1E8D0)]
SCRIPTS = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x5D0, 0x5EA), (0x620, 0x64A), (0x904, 0x94F),
           (0xE01, 0xE4E), (0xF40, 0xFBC), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2100, 0x214F), (0x3041, 0x30FF), (0x4E00, 0x9FFF),
           (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0x10400, 0x1044F), (0x11380, 0x113FF), (0x1D15E, 0x1D1C0),
           (0x2F800, 0x2FA1F), (0x31350, 0x323AF)]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "𝟘𝟙𝟚", "ⅣⅫ½²①", "\U00010d40\U00010d49"]
SIGNS = list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "«", "»", "€", "→", "∑", "\x00", "\x01", "\x7f", "\ufffd", "\ufeff", "\uffff"]
SPECIAL = ["<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<mask>", "<rest>", "<both>", "word", "wordy", "na\u00efve_tok", "nai\u0308ve_tok",
           "<|endoftext", "|>", "<|", "<ma", "\u00e9clair", "e\u0301clair", "two words", "  <mask>  ", " <rest> \n ", "\u3000<both>\u2003", "password",
           "sword word swords", "<rest><mask>", "<mask>  <mask>", "<rest>  <both>  <mask>", "<|x|><|x|>y"]


def piece(r):
    k = r.random()
    if k < 0.42:
        return r.choice(SPACES[:2]) + " ".join(r.choices(WORDS, k=r.randint(1, 8)))
    if k < 0.50:
        return "".join(r.choices(SPACES, k=r.randint(1, 4)))
    if k < 0.55:
        return r.choice(WORDS) + r.choice(ENDINGS) + r.choice(["", " ", "x", "\n", "s"])
    if k < 0.60:
        return r.choice(["", " "]) + "".join(r.choices(r.choice(DIGITS), k=r.choice([1, 2, 3, 4, 7, 30])))
    if k < 0.65:
        return r.choice(["", " ", "\n"]) + "".join(r.choices(SIGNS, k=r.choice([1, 1, 2, 3, 12]))) + r.choice(["", "\n", "\r\n", " \n"])
    if k < 0.69:
        return r.choice(["", " "]) + "".join(r.choices(EMOJI, k=r.randint(1, 3)))
    if k < 0.80:
        low, high = r.choice(SCRIPTS)
        return r.choice(["", " "]) + "".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 9)))
    if k < 0.87:
        low, high = r.choice(SCRIPTS)
        return "".join(chr(r.randint(low, high)) + "".join(r.choices(MARKS, k=r.choice([0, 1, 2, 3, 5]))) for _ in range(r.randint(1, 6)))
    if k < 0.92:
        return r.choice(["", " ", "  "]) + r.choice(SPECIAL) + r.choice(["", " ", "  ", "s", "\u0301", "_", "."])
    if k < 0.97:
        plane = r.randint(0, 16)
        codes = (plane << 16 | r.randint(0, 0xFFFF) for _ in range(r.randint(1, 4)))
        return "".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000)
    if k < 0.985:
        return r.choice(" \n\ta1.=é") * r.choice([3, 17, 49, 64, 65, 300])
    return "int main(void)\n{\n    for (int i = 0; i < n; i++) {\n\t\treturn x[i] += 0x1F;\n    }\n}\n"


def document(r, pieces):
    return "".join(piece(r) for _ in range(pieces))


def documents(seed, total_bytes):
    """Documents of 0 to some thousand characters, total_bytes in all or slightly more."""
    r, done = random.Random(seed), 0
    while done < total_bytes:
        text = document(r, r.choice([0, 1, 2, 5, 40, 200, 800]))
        done += len(text.encode()) + 1
        yield text


ADDED = [
    AddedToken("<mask>", lstrip=True, special=True, normalized=False),
    AddedToken("<rest>", rstrip=True, special=True, normalized=False),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("nai\u0308ve_tok", normalized=True),
    AddedToken("e\u0301clair", normalized=False),
    AddedToken("two words", normalized=True),
    AddedToken("<|x|>", special=True, normalized=False),
]


def train(kind, texts, size):
    """kind: gpt2, llama3, qwen2, odd."""
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    special = ["<|endoftext|>"]
    if kind == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        t.normalizer = normalizers.NFC() if kind != "odd" else normalizers.Sequence([normalizers.NFC()])
        pattern = {"llama3": LLAMA3, "qwen2": QWEN2, "odd": ODD}[kind]
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind == "odd":
        t.normalizer = None
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(ODD), "isolated"), pre_tokenizers.Split(":", "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if kind == "llama3":
        special = ["<|begin_of_text|>", "<|end_of_text|>"]
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=special if kind == "gpt2" else [],
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in special])
    t.add_tokens(ADDED if kind != "qwen2" else [a for a in ADDED if not a.rstrip and " " not in a.content])  # text may be split
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind == "llama3":
        bos = t.token_to_id("<|begin_of_text|>")
        template = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                                 special_tokens=[("<|begin_of_text|>", bos)])
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return t


def save(t, path, merges_as_text):
    """A tokenizer.json; merges as strings, as in old files, or as lists."""
    value = json.loads(t.to_str())
    if merges_as_text:
        value["model"]["merges"] = [" ".join(m) for m in value["model"]["merges"]]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
