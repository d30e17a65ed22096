(* Frame tables are looked up by return address: exceptions, closures, garbage collection, deep recursion. *)
module M = Map.Make (String)

exception Odd of int

let rec build n = if n = 0 then [] else string_of_int (n * 7919 mod 1009) :: build (n - 1)

let check n = if n land 1 = 1 then raise (Odd n) else n

let () =
  let words = build 20000 in
  let m = List.fold_left (fun m w -> M.update w (function None -> Some 1 | Some k -> Some (k + 1)) m) M.empty words in
  let caught = ref 0 and sum = ref 0 in
  for i = 1 to 1000 do
    try sum := !sum + check i with Odd n -> caught := !caught + n
  done;
  Gc.compact ();
  let t = Hashtbl.create 16 in
  List.iter (fun w -> Hashtbl.replace t (String.length w) w) words;
  let compose = List.fold_left (fun f g x -> g (f x)) (fun x -> x) [ succ; (fun x -> x * 3); pred ] in
  Printf.printf "%d %d %d %d %d %s\n" (M.cardinal m) !caught !sum (Hashtbl.length t) (compose 13)
    (String.concat "," (List.map (fun (a, b) -> a ^ "=" ^ string_of_int b) (List.filteri (fun i _ -> i < 5) (M.bindings m))));
  match List.nth words 30000 with exception (Failure s | Invalid_argument s) -> print_endline s | w -> print_endline w
